// The tasks of a run as typed arrays, filled from the columns of the API and kept up to date by its events.

import { toldApart } from "./format";
import { ended } from "./states";
import type { FlowEvent, Stage, Timeline } from "./views";

export const PHASES = ["queued", "staging-in", "starting", "running", "staging-out"] as const;
export type Phase = (typeof PHASES)[number];
/** What a task does after each of its moments: once its inputs are there, it waits for room again. */
const AFTER: readonly Phase[] = ["queued", "staging-in", "queued", "starting", "running", "staging-out"];

export interface Span {
  phase: Phase;
  from: number;
  to: number;
}

const UNKNOWN = Number.NaN;

/** One row for each task, by stage and index. Times are ms since `begin`; NaN where that has not happened. */
export class TaskTable {
  readonly length: number;
  readonly begin: number;
  readonly states: readonly string[];
  readonly nodes: string[];
  readonly stage: Int32Array;
  readonly index: Int32Array;
  readonly attempt: Int32Array;
  readonly state: Uint8Array;
  readonly node: Int32Array;
  readonly ready: Float64Array;
  readonly stagingIn: Float64Array;
  readonly staged: Float64Array;
  readonly bound: Float64Array;
  readonly started: Float64Array;
  readonly stagingOut: Float64Array;
  readonly ended: Float64Array;
  readonly bytesLocal: Float64Array;
  readonly bytesMoved: Float64Array;
  readonly exitCode: Float64Array;
  readonly reasons = new Map<number, string>();
  readonly items = new Map<number, string>();
  /** Tasks that the answer did not hold: there are more than the page shows. */
  readonly more: boolean;
  /** By number of the state: whether a task in it has not ended. */
  private readonly live: readonly boolean[];
  private rows: Map<string, number> | undefined;
  private shortItems: Map<number, string> | undefined;

  constructor(pages: readonly Timeline[]) {
    const first = pages[0];
    const size = pages.reduce((sum, page) => sum + page.stage.length, 0);
    this.length = size;
    this.begin = first ? Date.parse(first.begin_at) : 0;
    this.states = first ? first.states : [];
    this.live = this.states.map((state) => !ended(state));
    this.more = pages.length > 0 && pages[pages.length - 1]!.next_page_token !== null;
    this.nodes = [];
    this.stage = new Int32Array(size);
    this.index = new Int32Array(size);
    this.attempt = new Int32Array(size);
    this.state = new Uint8Array(size);
    this.node = new Int32Array(size).fill(-1);
    this.ready = new Float64Array(size).fill(UNKNOWN);
    this.stagingIn = new Float64Array(size).fill(UNKNOWN);
    this.staged = new Float64Array(size).fill(UNKNOWN);
    this.bound = new Float64Array(size).fill(UNKNOWN);
    this.started = new Float64Array(size).fill(UNKNOWN);
    this.stagingOut = new Float64Array(size).fill(UNKNOWN);
    this.ended = new Float64Array(size).fill(UNKNOWN);
    this.bytesLocal = new Float64Array(size);
    this.bytesMoved = new Float64Array(size);
    this.exitCode = new Float64Array(size).fill(UNKNOWN);
    let at = 0;
    for (const page of pages) {
      this.fill(page, at);
      at += page.stage.length;
    }
  }

  private fill(page: Timeline, at: number): void {
    this.stage.set(page.stage, at);
    this.index.set(page.index, at);
    this.attempt.set(page.attempt, at);
    this.state.set(page.state, at);
    this.bytesLocal.set(page.bytes_local, at);
    this.bytesMoved.set(page.bytes_moved, at);
    const numbers = page.nodes.map((name) => this.nodeNumber(name));
    page.node.forEach((node, row) => {
      if (node !== null) this.node[at + row] = numbers[node] ?? -1;
    });
    const times: [Float64Array, (number | null)[]][] = [
      [this.ready, page.ready_ms],
      [this.stagingIn, page.staging_in_ms],
      [this.staged, page.staged_ms],
      [this.bound, page.bound_ms],
      [this.started, page.started_ms],
      [this.stagingOut, page.staging_out_ms],
      [this.ended, page.ended_ms],
      [this.exitCode, page.exit_code],
    ];
    for (const [column, values] of times) {
      for (let row = 0; row < values.length; row++) {
        const value = values[row];
        if (value !== null && value !== undefined) column[at + row] = value;
      }
    }
    for (const [row, reason] of Object.entries(page.reasons)) this.reasons.set(at + Number(row), reason);
    for (const [row, item] of Object.entries(page.items)) this.items.set(at + Number(row), item);
  }

  private nodeNumber(name: string): number {
    const known = this.nodes.indexOf(name);
    if (known >= 0) return known;
    return this.nodes.push(name) - 1;
  }

  /** The name of a row's state. */
  stateOf(row: number): string {
    return this.states[this.state[row]!] ?? "PENDING";
  }

  /** The name of a row's node; empty if it has none. */
  nodeOf(row: number): string {
    return this.nodes[this.node[row]!] ?? "";
  }

  /** How a row is called, given its stage: with its index where there are several, and its item. */
  nameOf(row: number, stage: Stage | undefined): string {
    if (!stage) return String(this.index[row]);
    const item = this.items.get(row);
    const number = stage.width * stage.members === 1 ? stage.name : `${stage.name}[${this.index[row]}]`;
    return item === undefined ? number : `${number} ${item}`;
  }

  /** As `nameOf`, where there is too little room for it: the item without what those of all shards share. */
  shortNameOf(row: number, stage: Stage | undefined): string {
    if (!this.shortItems) {
      const stages = new Map<number, number[]>();
      for (const each of this.items.keys()) {
        const known = stages.get(this.stage[each]!);
        if (known) known.push(each);
        else stages.set(this.stage[each]!, [each]);
      }
      this.shortItems = new Map([...stages.values()].flatMap((rows) => {
        const texts = toldApart(rows.map((each) => this.items.get(each)!));
        return rows.map((each, at): [number, string] => [each, texts[at]!]);
      }));
    }
    const item = this.shortItems.get(row);
    return item === undefined ? this.nameOf(row, stage) : `[${this.index[row]}] ${item}`;
  }

  /** The row of a task; -1 if the table does not hold it. */
  rowOf(stage: number, index: number): number {
    if (!this.rows) {
      this.rows = new Map();
      for (let row = 0; row < this.length; row++) this.rows.set(`${this.stage[row]} ${this.index[row]}`, row);
    }
    return this.rows.get(`${stage} ${index}`) ?? -1;
  }

  /** What a task did when, up to `now` (ms since `begin`). Written into `spans`, which is reused; returns how many. */
  spans(row: number, now: number, spans: Span[]): number {
    const moments = [
      this.ready[row]!,
      this.stagingIn[row]!,
      this.staged[row]!,
      this.bound[row]!,
      this.started[row]!,
      this.stagingOut[row]!,
    ];
    const ended = this.ended[row]!;
    if (this.isCached(row)) return 0;
    let end = Number.isNaN(ended) || this.open(row) ? now : ended;
    let found = 0;
    for (let phase = moments.length - 1; phase >= 0; phase--) {
      const from = moments[phase]!;
      if (Number.isNaN(from) || from > end) continue;
      if (from < end || from !== this.staged[row]) spans[found++] = { phase: AFTER[phase]!, from, to: end };
      end = from;
    }
    return found;
  }

  /** Whether the task took its result from the cache: it neither waited for room nor ran. */
  isCached(row: number): boolean {
    return this.stateOf(row) === "SUCCEEDED" && Number.isNaN(this.bound[row]!);
  }

  /** Whether the task succeeded though its exit code is not 0: a policy ignored its failure, or its client judges by the code. */
  hasReturned(row: number): boolean {
    return this.exitCode[row]! > 0 && this.stateOf(row) === "SUCCEEDED";
  }

  /** Whether the task has not ended. */
  open(row: number): boolean {
    return this.live[this.state[row]!] ?? true;
  }

  /**
   * Take over what an event says of a task.
   *
   * Returns the row that changed; -1 if the event says nothing of a task here, and -2 if the table must be read anew.
   */
  apply(event: FlowEvent, stages: ReadonlyMap<string, Stage>): number {
    if (event.kind === "tasks.placed" || event.kind === "gang.placed") return -2;
    const { stage: name, index, attempt } = event.body;
    if (!event.kind.startsWith("task.") || typeof name !== "string" || typeof index !== "number") return -1;
    const stage = stages.get(name);
    const row = stage ? this.rowOf(stage.number, index) : -1;
    if (row < 0) return -1;
    const at = Date.parse(event.at) - this.begin;
    if (typeof attempt === "number") this.attempt[row] = attempt;
    const kind = event.kind.slice("task.".length);
    if (kind === "running") {
      this.set(row, "RUNNING");
      this.started[row] = at;
      this.ended[row] = UNKNOWN;
      return row;
    }
    if (kind === "succeeded" || kind === "failed") {
      this.set(row, kind.toUpperCase());
      this.ended[row] = at;
      return row;
    }
    return -2;
  }

  private set(row: number, state: string): void {
    const number = this.states.indexOf(state);
    if (number >= 0) this.state[row] = number;
  }

  /** The end of the time axis: the last moment that anything is known of. */
  last(now: number): number {
    let last = 0;
    let open = false;
    for (let row = 0; row < this.length; row++) {
      if (this.ended[row]! > last) last = this.ended[row]!;
      open ||= this.open(row) && !Number.isNaN(this.ready[row]!);
    }
    return open ? Math.max(now, last) : last || now;
  }
}
