// One task: its attempts, why it waits or went to its node, and its log.

import { useEffect, useRef, useState } from "preact/hooks";
import { get, log } from "../api";
import { Failure, Loading } from "../components/notes";
import { StateWord } from "../components/statebar";
import { saidOf, useLive } from "../live";
import { bytes, duration, moment } from "../model/format";
import { ended } from "../model/states";
import type { Attempt, Explanation, Task } from "../model/views";
import { href } from "../router";
import { Explanations } from "./run";

interface TaskPanelProps {
  run: string;
  stage: string;
  index: number;
}

export function TaskPanel({ run, stage, index }: TaskPanelProps) {
  const path = `/workflows/${encodeURIComponent(run)}/tasks/${encodeURIComponent(stage)}/${index}`;
  const answer = useLive<[Task, Explanation[]]>(
    path,
    async (signal) => {
      const task = await get<Task>(path, signal);
      // A process that does not lead may have no leader to ask; the rest of the task is shown all the same.
      const why = await get<Explanation[]>(`${path}/explain`, signal).catch((error: unknown) => {
        if (signal.aborted) throw error;
        return [];
      });
      return [task, why];
    },
    { every: 3_000 },
  );
  const title = useRef<HTMLHeadingElement>(null);
  useEffect(() => title.current?.focus(), []);
  const [task, why] = answer.value ?? [];
  return (
    <aside class="card task" aria-labelledby="task">
      <div class="heading titled">
        <h2 id="task" ref={title} tabIndex={-1}>{stage}[{index}]{task?.item && ` (${task.item})`} {task && <StateWord state={task.state} />}</h2>
        <a class="button" href={href("runs", run)} aria-label="Close the task">✕</a>
      </div>
      <Failure message={answer.error} />
      {!task && !answer.error && <Loading />}
      {task && (
        <>
          <dl class="facts">
            <div><dt>Node</dt><dd>{task.node ?? "—"}</dd></div>
            {task.item && <div><dt>Item</dt><dd>{task.item}</dd></div>}
            {task.role && task.role !== "task" && <div><dt>Role</dt><dd>{task.role}</dd></div>}
            <div><dt>Exit code</dt><dd>{task.exit_code ?? "—"}</dd></div>
            <div><dt>Queued</dt><dd>{moment(task.ready_at)}</dd></div>
            <div><dt>Started</dt><dd>{moment(task.started_at)}</dd></div>
            <div><dt>Ended</dt><dd>{moment(task.ended_at)}</dd></div>
            <div><dt>Input on the node</dt><dd>{bytes(task.bytes_local)}</dd></div>
            <div><dt>Input moved</dt><dd>{bytes(task.bytes_moved)}</dd></div>
          </dl>
          {task.reason && <p class="note bad">{task.reason}</p>}
          <Reasons state={task.state} found={why ?? []} />
          {task.attempts.length > 0 && <Choice attempt={task.attempts[task.attempts.length - 1]!} />}
          {task.attempts.length > 0 && <Attempts attempts={task.attempts} />}
          {task.outputs.length > 0 && <Outputs task={task} />}
          <Log path={path} state={task.state} attempts={task.attempts.map((each) => each.attempt)} />
        </>
      )}
    </aside>
  );
}

const ENDED: Record<string, string> = { FAILED: "Why it failed", SKIPPED: "Why it was skipped", CANCELLED: "Why it was cancelled" };

/** Why it waits or ended so, and apart from that why its last attempt was on its node. */
function Reasons({ state, found }: { state: string; found: Explanation[] }) {
  const placed = found.filter((each) => each.code === "Placed");
  const others = found.filter((each) => each.code !== "Placed");
  const waits = !ended(state) && state !== "RUNNING";
  return (
    <>
      {(others.length > 0 || waits) && <h3>{ENDED[state] ?? "Why it waits"}</h3>}
      {(others.length > 0 || waits) && <Explanations found={others} none="Nothing keeps it." />}
      {placed.length > 0 && <h3>Why on this node</h3>}
      {placed.length > 0 && <Explanations found={placed} none="" />}
    </>
  );
}

/** What the task would have cost on its node, and on the nodes that came next. */
function Choice({ attempt }: { attempt: Attempt }) {
  const choice = attempt.choice;
  if (!choice || Object.keys(choice.cost_ms).length === 0) return null;
  const nodes = [{ node: attempt.node, cost_ms: choice.cost_ms, full: false }, ...choice.others];
  const terms = [...new Set(nodes.flatMap((each) => Object.keys(each.cost_ms)))];
  return (
    <table class="list small">
      <caption>Expected cost by node</caption>
      <thead>
        <tr>
          <th scope="col">Node</th>
          {terms.map((term) => <th scope="col" key={term}>{term}</th>)}
        </tr>
      </thead>
      <tbody>
        {nodes.map((each, at) => (
          <tr key={at} class={at === 0 ? "chosen" : ""}>
            <th scope="row">{each.node}{each.full && " (full)"}</th>
            {terms.map((term) => <td key={term} class="number">{duration(each.cost_ms[term] ?? 0)}</td>)}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Attempts({ attempts }: { attempts: Attempt[] }) {
  return (
    <>
      <h3>Attempts</h3>
      <table class="list small">
        <thead>
          <tr><th scope="col">#</th><th scope="col">Node</th><th scope="col">Started</th><th scope="col">Ran</th><th scope="col">End</th></tr>
        </thead>
        <tbody>
          {attempts.map((each) => {
            const ran = each.started_at && each.ended_at ? duration(Date.parse(each.ended_at) - Date.parse(each.started_at)) : "—";
            return (
              <tr key={each.attempt}>
                <td>{each.attempt}</td>
                <td>{each.node}</td>
                <td>{moment(each.started_at)}</td>
                <td class="number">{ran}</td>
                <td>{[each.exit_code !== null && `exit ${each.exit_code}`, each.reason, each.message].filter(Boolean).join(" · ") || "—"}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </>
  );
}

function Outputs({ task }: { task: Task }) {
  return (
    <>
      <h3>Outputs</h3>
      <ul>
        {task.outputs.map((each) => (
          <li key={each.name}>{each.name}: {bytes(each.size_bytes)}{each.nodes.length > 0 && ` on ${each.nodes.join(", ")}`}</li>
        ))}
      </ul>
    </>
  );
}

/** More of a log is not kept in the page: the end is what people look for. */
const MOST = 512 * 1024;

function Log({ path, state, attempts }: { path: string; state: string; attempts: number[] }) {
  const [stream, setStream] = useState<"stdout" | "stderr">(state === "FAILED" ? "stderr" : "stdout");
  const [chosen, setChosen] = useState<number | undefined>(undefined);
  const attempt = chosen ?? attempts[attempts.length - 1];
  const [text, setText] = useState("");
  const [problem, setProblem] = useState("");
  const [cut, setCut] = useState(false);
  const box = useRef<HTMLPreElement>(null);
  useEffect(() => {
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout>;
    let offset = 0;
    setText("");
    setCut(false);
    const read = async () => {
      try {
        const part = await log(`${path}/logs?stream=${stream}&attempt=${attempt}&offset=${offset}&limit=262144`, stop.signal);
        if (stop.signal.aborted) return;
        const grew = part.next > offset;
        offset = part.next;
        setProblem("");
        if (grew) {
          const box_ = box.current;
          const below = !box_ || box_.scrollTop + box_.clientHeight >= box_.scrollHeight - 20;
          setText((before) => {
            const all = before + part.text;
            if (all.length > MOST) setCut(true);
            return all.slice(-MOST);
          });
          if (below) requestAnimationFrame(() => box.current?.scrollTo(0, box.current.scrollHeight));
        }
        if (part.more) timer = setTimeout(read, grew ? 50 : 1000);
      } catch (error) {
        if (stop.signal.aborted) return;
        setProblem(saidOf(error));
        timer = setTimeout(read, 3000);
      }
    };
    if (attempt !== undefined) void read();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [path, stream, attempt, ended(state)]);
  return (
    <>
      <div class="heading">
        <h3>Log</h3>
        {attempts.length > 1 && (
          <select aria-label="Attempt" value={attempt} onChange={(event) => setChosen(Number(event.currentTarget.value))}>
            {attempts.map((each) => <option key={each} value={each}>attempt {each}</option>)}
          </select>
        )}
        <div class="tabs" role="group" aria-label="Stream">
          {(["stdout", "stderr"] as const).map((each) => (
            <button type="button" key={each} aria-pressed={each === stream} onClick={() => setStream(each)}>{each}</button>
          ))}
        </div>
      </div>
      <Failure message={problem} />
      {cut && <p class="muted">Only the last 512 KiB are shown.</p>}
      <pre class="log" ref={box} tabIndex={0} aria-label={attempt === undefined ? stream : `${stream} of attempt ${attempt}`}>
        {text || (attempt === undefined ? "It has not started, so it has no log." : "Nothing was written here.")}
      </pre>
    </>
  );
}
