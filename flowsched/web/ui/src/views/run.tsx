// One run: its graph, its stages, its Gantt, and beside them one task.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, log, post, timelines } from "../api";
import { Dag, MOST_STAGES } from "../components/dag";
import { Gantt } from "../components/gantt";
import { Failure, Loading } from "../components/notes";
import { StateBar, StateWord } from "../components/statebar";
import { saidOf, useLive, useNow } from "../live";
import { bytes, count, counted, duration, moment, startsIn } from "../model/format";
import { ended, progress } from "../model/states";
import { TaskTable } from "../model/tasks";
import type { CacheFound, Explanation, FlowEvent, Stage, Workflow } from "../model/views";
import { href } from "../router";
import { TaskPanel } from "./task";

/** All tasks are read again after events: at the soonest after this, and after `EASE` times what reading took; in any case after the last (ms). */
const SHORTEST = 2_000;
const EASE = 20;
const LONGEST = 30_000;

interface Loaded {
  run: Workflow;
  stages: Stage[];
  table: TaskTable;
}

export function RunView({ id, task }: { id: string; task: { stage: string; index: number } | undefined }) {
  const path = `/workflows/${encodeURIComponent(id)}`;
  const [version, setVersion] = useState(0);
  const shown = useRef<Loaded | undefined>(undefined);
  const byName = useRef(new Map<string, Stage>());
  const tables = useRef({ readAt: 0, took: 0, stale: true, ended: false });
  const frame = useRef(0);
  useEffect(() => () => cancelAnimationFrame(frame.current), []);

  // Events change the table at once; all tasks are read again only now and then, since that is 10,000 rows.
  const readTable = async (signal: AbortSignal): Promise<TaskTable> => {
    const state = tables.current;
    const began = performance.now();
    const since = began - state.readAt;
    const due = state.ended || since > LONGEST || (state.stale && since > Math.max(SHORTEST, state.took * EASE));
    if (shown.current && !due) return shown.current.table;
    state.stale = state.ended = false;
    const table = new TaskTable(await timelines(id, signal));
    state.readAt = performance.now();
    state.took = state.readAt - began;
    return table;
  };

  const live = useLive<Loaded>(
    id,
    async (signal) => {
      const [run, stages, table] = await Promise.all([
        get<Workflow>(path, signal),
        get<Stage[]>(`${path}/stages`, signal),
        readTable(signal),
      ]);
      byName.current = new Map(stages.map((stage) => [stage.name, stage]));
      shown.current = { run, stages, table };
      return shown.current;
    },
    {
      stream: `${path}/events`,
      every: 3_000,
      onEvents: (events: FlowEvent[]) => {
        const table = shown.current?.table;
        if (table) for (const event of events) table.apply(event, byName.current);
        tables.current.stale = true;
        tables.current.ended ||= events.length === 0 || events.some((event) => event.kind.startsWith("workflow."));
        if (!frame.current) {
          frame.current = requestAnimationFrame(() => {
            frame.current = 0;
            setVersion((before) => before + 1);
          });
        }
        return true;
      },
    },
  );
  const loaded = live.value;
  const heading = useMemo(() => loaded && <Heading run={loaded.run} stages={loaded.stages} open={live.open} />, [loaded, live.open]);
  const failed = useMemo(() => loaded && firstFailed(loaded), [loaded]);
  if (!loaded) return live.error ? <Failure message={live.error} /> : <Loading />;
  return (
    <>
      {heading}
      <Failure message={live.error} />
      {failed && <LastWords key={`${failed.stage} ${failed.index}`} run={id} {...failed} />}
      <Body loaded={loaded} version={version} task={task} />
    </>
  );
}

interface Failed {
  stage: string;
  index: number;
  name: string;
}

/** The task that failed first: what failed after it may follow from it. */
function firstFailed({ stages, table }: Loaded): Failed | undefined {
  const state = table.states.indexOf("FAILED");
  let first = -1;
  for (let row = 0; row < table.length; row++) {
    if (table.state[row] === state && (first < 0 || table.ended[row]! < table.ended[first]!)) first = row;
  }
  const stage = stages.find((each) => each.number === table.stage[first]);
  return stage && { stage: stage.name, index: table.index[first]!, name: table.nameOf(first, stage) };
}

const LINES = 15;

/** The last lines that a failed task wrote: to stderr, else to stdout. */
function LastWords({ run, stage, index, name }: Failed & { run: string }) {
  const [said, setSaid] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    const path = `/workflows/${encodeURIComponent(run)}/tasks/${encodeURIComponent(stage)}/${index}/logs`;
    const read = async () => {
      for (const stream of ["stderr", "stdout"]) {
        const { text } = await log(`${path}?stream=${stream}&tail=${LINES}`, stop.signal);
        if (text) return setSaid(text);
      }
    };
    read().catch(() => undefined); // the task's own panel says why its log cannot be read
    return () => stop.abort();
  }, [run, stage, index]);
  if (!said) return null;
  return (
    <section aria-label={`The last lines of ${name}, which failed first`}>
      <p class="muted small">The last lines of <a href={href("runs", run, "tasks", stage, index)}>{name}</a>, which failed first:</p>
      <pre class="words">{said}</pre>
    </section>
  );
}

function Heading({ run, stages, open }: { run: Workflow; stages: Stage[]; open: boolean }) {
  const over = ended(run.state);
  const now = useNow(over ? 0 : 1000);
  const [problem, setProblem] = useState("");
  const { done, all } = progress(run.counts);
  const local = stages.reduce((sum, stage) => sum + stage.bytes_local, 0);
  const moved = stages.reduce((sum, stage) => sum + stage.bytes_moved, 0);
  const to = run.ended_at ? Date.parse(run.ended_at) : now;
  const command = (kind: string) => async () => {
    if (kind === "cancel" && !confirm(`Cancel ${run.name}? Nothing more of it starts, and what runs is ended.`)) return;
    try {
      await post(`/workflows/${encodeURIComponent(run.id)}/${kind}`);
      setProblem("");
    } catch (error) {
      setProblem(saidOf(error));
    }
  };
  return (
    <>
      <div class="heading">
        <h1>
          {run.name} <StateWord state={run.state} returned={run.returned} />
        </h1>
        <div class="actions">
          {!over && !run.paused && <button type="button" onClick={command("pause")}>Pause</button>}
          {!over && run.paused && <button type="button" onClick={command("resume")}>Resume</button>}
          {!over && <button type="button" onClick={command("cancel")}>Cancel</button>}
          {run.state === "FAILED" && !run.source && <button type="button" onClick={command("retry")} title="Keeps what succeeded. After an edit of the document or of an input file: flowsched retry RUN --changed FILE, or flowsched run FILE --resume">Retry what failed</button>}
        </div>
      </div>
      <Failure message={problem} />
      {!over && !open && <p class="note muted" role="status">No events arrive now; the page asks again every few seconds.</p>}
      <dl class="facts">
        <div><dt>Id</dt><dd><code>{run.id}</code></dd></div>
        <div><dt>Queue</dt><dd>{run.queue}</dd></div>
        {run.user && <div><dt>User</dt><dd>{run.user}</dd></div>}
        {run.source && <div><dt>Engine</dt><dd>{run.source}</dd></div>}
        <div><dt>Tasks</dt><dd>{count(done)} of {count(all)} succeeded</dd></div>
        <div><dt>Accepted</dt><dd>{moment(run.created_at)}</dd></div>
        <div><dt>Time</dt><dd>{run.started_at ? duration(to - Date.parse(run.started_at)) : "—"}</dd></div>
        <div><dt>Input found on the node</dt><dd>{bytes(local)}</dd></div>
        <div><dt>Input moved</dt><dd>{bytes(moved)}</dd></div>
      </dl>
      <StateBar counts={run.counts} returned={run.returned} />
      {run.waiting && (
        <p class={run.waiting.permanent ? "note bad" : "note"}>
          {counted(run.waiting.tasks, "task")} of <b>{run.waiting.stage}</b> {run.waiting.tasks === 1 ? "is" : "are"} {run.waiting.state}: {startsIn(run.waiting, now)}{run.waiting.message}
          {run.waiting.permanent && ". This does not end by itself."}
        </p>
      )}
      {run.reason && <p class={run.state === "ENGINE" ? "note" : "note bad"}>{run.reason}</p>}
    </>
  );
}

interface BodyProps {
  loaded: Loaded;
  version: number;
  task: { stage: string; index: number } | undefined;
}

function Body({ loaded, version, task }: BodyProps) {
  const { run, stages, table } = loaded;
  const [stage, setStage] = useState<string | undefined>(undefined);
  const [state, setState] = useState("");
  const [order, setOrder] = useState("stage");
  const [row, setRow] = useState(-1);
  const names = useMemo(() => new Map(stages.map((each) => [each.number, each])), [stages]);
  const number = stage === undefined ? -1 : stages.find((each) => each.name === stage)?.number ?? -1;
  const rows = useMemo(() => chosen(table, number, state, order), [table, version, number, state, order]);
  const clock = useNow(ended(run.state) ? 0 : 1000);
  const now = Math.max(0, clock - table.begin);
  const opened = task ? table.rowOf(stages.find((each) => each.name === task.stage)?.number ?? -1, task.index) : -1;
  useEffect(() => {
    if (opened >= 0) setRow(opened);
  }, [opened]);

  const name = (at: number): string => table.nameOf(at, names.get(table.stage[at]!));
  const shortName = (at: number): string => table.shortNameOf(at, names.get(table.stage[at]!));
  const open = (at: number) => {
    const of = names.get(table.stage[at]!);
    if (of) location.hash = href("runs", run.id, "tasks", of.name, table.index[at]!).slice(1);
  };
  // The graph and the table change with the stages, not with each event.
  const graph = useMemo(() => {
    const choose = (of: string) => setStage((before) => (before === of ? undefined : of));
    return (
      <section aria-labelledby="graph">
        <h2 id="graph">Stages</h2>
        {stages.length > 1 && stages.length <= MOST_STAGES && (
          <>
            <Dag stages={stages} selected={stage} onSelect={choose} direction={innerWidth < 700 ? "TB" : "LR"} />
            <p class="muted small">The thick line is the critical path: the stages that the end waited for, or waits for now. A stage shows its tasks below.</p>
          </>
        )}
        <StageTable stages={stages} selected={stage} onSelect={choose} />
        {stage !== undefined && <Reasons run={run.id} stage={stage} />}
      </section>
    );
  }, [stages, stage, run.id]);
  return (
    <div class={task ? "split" : ""}>
      <div class="column">
        {graph}
        <section aria-labelledby="tasks">
          <div class="heading">
            <h2 id="tasks">Tasks</h2>
            <form class="filters" onSubmit={(event) => event.preventDefault()}>
              <select aria-label="Stage" value={stage ?? ""} onChange={(event) => setStage(event.currentTarget.value || undefined)}>
                  <option value="">all stages</option>
                  {stages.slice(0, 1000).map((each) => <option key={each.name}>{each.name}</option>)}
                </select>
              <select aria-label="State" value={state} onChange={(event) => setState(event.currentTarget.value)}>
                  <option value="">any state</option>
                  {table.states.map((each) => <option key={each}>{each}</option>)}
                </select>
              <select aria-label="Order" value={order} onChange={(event) => setOrder(event.currentTarget.value)}>
                  <option value="stage">by stage</option>
                  <option value="start">by start</option>
                  <option value="longest">longest first</option>
                </select>
            </form>
          </div>
          {table.more && <p class="note">The first {count(table.length)} of {count(run.tasks)} tasks are shown.</p>}
          <Gantt
            table={table}
            version={version}
            rows={rows}
            name={name}
            shortName={shortName}
            now={now}
            height={Math.min(560, Math.max(120, rows.length * 18 + 34))}
            selected={row}
            onSelect={setRow}
            onOpen={open}
          />
          <p class="small"><button type="button" disabled={row < 0} onClick={() => open(row)}>Open the chosen task</button> <span class="muted">{counted(rows.length, "task")}</span></p>
        </section>
      </div>
      {task && <TaskPanel key={`${task.stage} ${task.index}`} run={run.id} stage={task.stage} index={task.index} />}
    </div>
  );
}

/** The rows that the Gantt shows, in its order. */
function chosen(table: TaskTable, stage: number, state: string, order: string): Int32Array {
  const wanted = state ? table.states.indexOf(state) : -1;
  const found = new Int32Array(table.length);
  let size = 0;
  for (let row = 0; row < table.length; row++) {
    if ((stage < 0 || table.stage[row] === stage) && (wanted < 0 || table.state[row] === wanted)) found[size++] = row;
  }
  const rows = found.subarray(0, size);
  const late = (value: number) => (Number.isNaN(value) ? Number.MAX_VALUE : value);
  if (order === "start") rows.sort((a, b) => late(table.started[a]!) - late(table.started[b]!) || a - b);
  if (order === "longest") {
    const length = (row: number) => (Number.isNaN(table.started[row]!) ? -1 : (Number.isNaN(table.ended[row]!) ? Number.MAX_VALUE : table.ended[row]! - table.started[row]!));
    rows.sort((a, b) => length(b) - length(a) || a - b);
  }
  return rows;
}

const ROWS = 12;

function StageTable({ stages, selected, onSelect }: { stages: Stage[]; selected: string | undefined; onSelect: (stage: string) => void }) {
  const [most, setMost] = useState(ROWS);
  const rows = stages.slice(0, most);
  return (
    <>
      <div class="scroll" tabIndex={0} role="region" aria-label="Table of stages">
      <table class="list stages">
        <thead>
          <tr>
            <th scope="col">Stage</th>
            <th scope="col">State</th>
            <th scope="col">Tasks</th>
            <th scope="col">Waited</th>
            <th scope="col">Staged</th>
            <th scope="col">Ran</th>
            <th scope="col">On the node</th>
            <th scope="col">Moved</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((stage) => {
            const { done, all } = progress(stage.counts);
            return (
              <tr key={stage.name} class={stage.name === selected ? "chosen" : ""}>
                <td class="wide">
                  <button type="button" class="plain link" aria-pressed={stage.name === selected} onClick={() => onSelect(stage.name)}>{stage.name}</button>
                  {stage.cached > 0 && <span class="tag">{count(stage.cached)} cached</span>}
                  {stage.gang && <span class="tag">gang of {stage.members}</span>}
                  {(stage.waiting || stage.reason) && <span class={stage.waiting?.permanent || stage.state === "FAILED" ? "why bad" : "why"}>{stage.waiting?.message ?? stage.reason}</span>}
                </td>
                <td><StateWord state={stage.state} returned={stage.returned} /></td>
                <td class="bar"><StateBar counts={stage.counts} returned={stage.returned} /> <span class="number">{count(done)}/{count(all)}</span></td>
                <td class="number" title="sum over its tasks">{duration(1000 * stage.queued_seconds)}</td>
                <td class="number" title="sum over its tasks">{duration(1000 * stage.staging_seconds)}</td>
                <td class="number" title="sum over its tasks">{duration(1000 * stage.running_seconds)}</td>
                <td class="number">{bytes(stage.bytes_local)}</td>
                <td class="number">{bytes(stage.bytes_moved)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
      </div>
      {stages.length > most && <p><button type="button" onClick={() => setMost(most * 8)}>Show more of {counted(stages.length, "stage")}</button></p>}
    </>
  );
}

/** Why tasks of a stage do not run. */
function Reasons({ run, stage }: { run: string; stage: string }) {
  const path = `/workflows/${encodeURIComponent(run)}`;
  const answer = useLive<[Explanation[], CacheFound[]]>(
    `${path} ${stage}`,
    (signal) => Promise.all([
      get<Explanation[]>(`${path}/explain?stage=${encodeURIComponent(stage)}`, signal),
      get<CacheFound[]>(`${path}/cache`, signal).catch(() => []), // a run of another engine has none
    ]),
    { every: 5_000 },
  );
  const [why, cache] = answer.value ?? [];
  const looked = cache?.filter((found) => found.stage === stage) ?? [];
  return (
    <div class="card">
      <h3>Why tasks of {stage} do not run</h3>
      <Failure message={answer.error} />
      {why && <Explanations found={why} none="No task of this stage waits." />}
      {looked.length > 0 && (
        <>
          <h3>Cache of results</h3>
          <ul class="reasons">
            {looked.slice(0, 20).map((found) => (
              <li key={found.first}>
                {counted(found.shards, "shard")} ({found.which.join(", ") + (found.shards > found.which.length ? " …" : "")}): {found.source ? <b>taken from {found.source}</b> : `ran: ${found.why}`}
              </li>
            ))}
          </ul>
        </>
      )}
    </div>
  );
}

export function Explanations({ found, none }: { found: Explanation[]; none: string }) {
  if (found.length === 0) return <p class="muted">{none}</p>;
  return (
    <ul class="reasons">
      {found.map((each, at) => (
        <li key={at}>
          <b>{each.code}</b> {each.tasks > 1 && <span class="muted">({counted(each.tasks, "task")})</span>} {each.message}
          {each.start_at && <p class="muted">Expected to start at {moment(each.start_at)}{each.estimate && ` (${each.estimate})`}</p>}
          {each.binds.length > 0 && <p class="muted">Kept by {each.binds.join(", ")}</p>}
          {each.suggestions.map((suggestion) => <p key={suggestion.message}>→ {suggestion.message}</p>)}
        </li>
      ))}
    </ul>
  );
}
