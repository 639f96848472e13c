// Queues: what each may use, deserves, is guaranteed, and has borrowed.

import { get } from "../api";
import { Failure, Loading } from "../components/notes";
import { useLive } from "../live";
import { count, counted, quantity } from "../model/format";
import type { ClusterNode, Queue } from "../model/views";

export function QueuesView() {
  const live = useLive<[Queue[], ClusterNode[]]>(
    "queues",
    (signal) => Promise.all([get<Queue[]>("/queues", signal), get<ClusterNode[]>("/nodes", signal)]),
    { stream: "/events", every: 5_000 },
  );
  const [queues, nodes] = live.value ?? [];
  return (
    <>
      <h1>Queues</h1>
      <Failure message={live.error} />
      {!queues && !live.error && <Loading />}
      {queues && (
        <>
          <ul class="legend" aria-label="Colours">
            <li><span class="swatch use-own" /> used, of its own share</li>
            <li><span class="swatch use-borrowed" /> borrowed: beyond its share, others may take it back</li>
            <li><span class="swatch mark-guarantee" /> guarantee</li>
            <li><span class="swatch mark-deserved" /> share by weight</li>
          </ul>
          <div class="cards">{inTree(queues).map(([queue, depth]) => <Card key={queue.name} queue={queue} depth={depth} nodes={nodes!} />)}</div>
        </>
      )}
    </>
  );
}

/** Each queue after the one it is below, with how deep it lies. */
function inTree(queues: Queue[]): [Queue, number][] {
  const names = new Set(queues.map((queue) => queue.name));
  const below = (parent: string | null): Queue[] =>
    queues.filter((queue) => (queue.parent !== null && names.has(queue.parent) ? queue.parent : null) === parent);
  const walk = (parent: string | null, depth: number): [Queue, number][] =>
    depth > 50 ? [] : below(parent).flatMap((queue) => [[queue, depth] as [Queue, number], ...walk(queue.name, depth + 1)]);
  return walk(null, 0);
}

function Card({ queue, depth, nodes }: { queue: Queue; depth: number; nodes: ClusterNode[] }) {
  const amounts = [queue.used, queue.guarantee, queue.cap, queue.pending, queue.deserved];
  const resources = [...new Set(["cpu", "memory", ...amounts.flatMap((each) => Object.keys(each))])];
  return (
    <section class={`card queue depth-${Math.min(4, depth)}`} aria-label={`Queue ${queue.name}`}>
      <div class="heading">
        <h2>{queue.name} {queue.paused && <span class="tag">paused</span>}</h2>
        <span class="muted">weight {queue.weight}{queue.priority !== 0 && `, priority ${queue.priority}`}{queue.parent && `, below ${queue.parent}`}</span>
      </div>
      <p>
        {counted(queue.running, "task")} running, {count(queue.starting)} starting, {count(queue.waiting)} waiting, {Math.round(100 * queue.dominant_share)} % of the cluster
      </p>
      {resources.map((resource) => <Use key={resource} queue={queue} resource={resource} total={nodes.reduce((sum, node) => sum + (node.allocatable[resource] ?? 0), 0)} />)}
      {queue.warnings.map((warning) => <p key={warning} class="note bad">{warning}</p>)}
    </section>
  );
}

function Use({ queue, resource, total }: { queue: Queue; resource: string; total: number }) {
  const [used, deserved, guarantee, cap, pending] = [queue.used, queue.deserved, queue.guarantee, queue.cap, queue.pending].map((each) => each[resource] ?? 0) as [number, number, number, number, number];
  const borrowed = Math.max(0, used - deserved);
  const all = Math.max(total, used, guarantee, 1);
  const part = (amount: number) => `${Math.min(100, (100 * amount) / all)}%`;
  if (!used && !pending && !guarantee && !cap && resource !== "cpu") return null;
  const told = [
    `${quantity(resource, used)} of ${quantity(resource, total)} used`,
    borrowed && `${quantity(resource, borrowed)} borrowed`,
    deserved && `share ${quantity(resource, deserved)}`,
    guarantee && `guarantee ${quantity(resource, guarantee)}`,
    cap && `cap ${quantity(resource, cap)}`,
    pending && `${quantity(resource, pending)} asked for`,
  ].filter(Boolean).join(", ");
  return (
    <div class="use">
      <span class="resource">{resource}</span>
      <span class="usebar" role="img" aria-label={`${resource}: ${told}`}>
        <span class="use-own" style={{ width: part(used - borrowed) }} />
        <span class="use-borrowed" style={{ width: part(borrowed) }} />
        {guarantee > 0 && <span class="mark mark-guarantee" style={{ left: part(guarantee) }} />}
        {deserved > 0 && <span class="mark mark-deserved" style={{ left: part(deserved) }} />}
      </span>
      <span class="told muted">{told}</span>
    </div>
  );
}
