// What the API answers (flowsched/workflow/views.py), as far as the page shows it. Times are ISO 8601.

export interface Waiting {
  stage: string;
  tasks: number;
  state: string;
  code: string;
  message: string;
  permanent: boolean;
  start_low_at: string | null;
  start_high_at: string | null;
}

export interface Workflow {
  id: string;
  name: string;
  queue: string;
  user: string;
  state: string;
  reason: string;
  waiting: Waiting | null;
  created_at: string;
  started_at: string | null;
  ended_at: string | null;
  stages: number;
  tasks: number;
  counts: Record<string, number>;
  /** Exit code → tasks that succeeded though it is not 0. */
  returned: Record<string, number>;
  paused: boolean;
  cancel_requested: boolean;
  source: string;
}

export interface WorkflowPage {
  workflows: Workflow[];
  next_page_token: string | null;
}

export interface Stage {
  name: string;
  number: number;
  state: string;
  reason: string;
  waiting: Waiting | null;
  width: number;
  members: number;
  gang: boolean;
  needs: string[];
  counts: Record<string, number>;
  returned: Record<string, number>;
  /** Tasks that took the result of a task of another run. */
  cached: number;
  started_at: string | null;
  ended_at: string | null;
  queued_seconds: number;
  staging_seconds: number;
  running_seconds: number;
  bytes_local: number;
  bytes_moved: number;
}

/** Tasks as columns; a column is empty if all its entries are null or 0. Times are ms since `begin_at`. */
export interface Timeline {
  workflow: string;
  begin_at: string;
  now_ms: number;
  states: string[];
  nodes: string[];
  stage: number[];
  index: number[];
  attempt: number[];
  state: number[];
  node: (number | null)[];
  ready_ms: (number | null)[];
  staging_in_ms: (number | null)[];
  staged_ms: (number | null)[];
  bound_ms: (number | null)[];
  started_ms: (number | null)[];
  staging_out_ms: (number | null)[];
  ended_ms: (number | null)[];
  bytes_local: number[];
  bytes_moved: number[];
  exit_code: (number | null)[];
  reasons: Record<string, string>;
  items: Record<string, string>;
  next_page_token: string | null;
}

export interface NodeCost {
  node: string;
  cost_ms: Record<string, number>;
  full: boolean;
}

export interface Attempt {
  attempt: number;
  pod: string;
  node: string;
  bound_at: string;
  started_at: string | null;
  ended_at: string | null;
  exit_code: number | null;
  reason: string;
  message: string;
  usage: Record<string, number>;
  choice: { cost_ms: Record<string, number>; others: NodeCost[]; staged: boolean } | null;
  images: { name: string; digest: string }[];
}

export interface Task {
  stage: string;
  index: number;
  shard: number;
  role: string;
  item: string | null;
  state: string;
  reason: string;
  attempt: number;
  node: string | null;
  exit_code: number | null;
  ready_at: string | null;
  bound_at: string | null;
  started_at: string | null;
  ended_at: string | null;
  bytes_local: number;
  bytes_moved: number;
  attempts: Attempt[];
  outputs: { name: string; uri: string; size_bytes: number; value: string | null; nodes: string[] }[];
}

export interface Explanation {
  stage: string;
  shards: number[];
  tasks: number;
  state: string;
  code: string;
  message: string;
  start_at: string | null;
  start_low_at: string | null;
  start_high_at: string | null;
  estimate: string;
  binds: string[];
  suggestions: { kind: string; message: string }[];
}

/** What the look-ups in the cache of results found, for shards that found the same. */
export interface CacheFound {
  stage: string;
  shards: number;
  first: number;
  which: string[];
  source: string;
  why: string;
}

export interface FlowEvent {
  id: number;
  workflow: string;
  at: string;
  kind: string;
  body: Record<string, unknown>;
}

export interface Queue {
  name: string;
  weight: number;
  parent: string | null;
  priority: number;
  paused: boolean;
  cap: Record<string, number>;
  guarantee: Record<string, number>;
  used: Record<string, number>;
  deserved: Record<string, number>;
  pending: Record<string, number>;
  dominant_share: number;
  waiting: number;
  starting: number;
  running: number;
  warnings: string[];
}

export interface ClusterNode {
  name: string;
  ready: boolean;
  state: string;
  message: string;
  drain: { from_at: string; until_at: string | null; reason: string; by: string } | null;
  rack: string;
  allocatable: Record<string, number>;
  used: Record<string, number>;
  starting: number;
  running: number;
  gangs: Record<string, number>;
  cache_bytes: number;
  cache_limit_bytes: number;
  datasets: number;
  bytes_in: number;
  bytes_out: number;
  others: Record<string, number>;
}

export interface Problem {
  title: string;
  status: number;
  detail: string;
}
