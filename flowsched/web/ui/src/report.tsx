// The report of a run, or of two: one file that holds its data and needs no server.

import { type ComponentChildren, render } from "preact";
import { useMemo, useState } from "preact/hooks";
import { Dag, MOST_STAGES } from "./components/dag";
import { Gantt } from "./components/gantt";
import { StateBar, StateWord } from "./components/statebar";
import { criticalPath } from "./model/critical";
import { bytes, count, counted, duration } from "./model/format";
import { progress } from "./model/states";
import { TaskTable } from "./model/tasks";
import type { Stage, Timeline, Workflow } from "./model/views";
import "./style.css";
import "./report.css";

interface Efficiency {
  stage: string;
  attempts: number;
  failed: number;
  running_seconds: number;
  core_seconds: number;
  cpu_seconds: number | null;
  cpu_efficiency: number | null;
  cores_asked: number;
  cores_used: number | null;
  memory_asked_bytes: number;
  memory_used_bytes: number | null;
  memory_efficiency: number | null;
  read_bytes: number | null;
  written_bytes: number | null;
  advice: string[];
}

interface Failed {
  stage: string;
  index: number;
  item: string | null;
  attempt: number;
  node: string;
  reason: string;
  message: string;
  exit_code: number | null;
  ran_seconds: number;
}

interface ReportStage extends Stage {
  cached: number;
  core_hours: number;
  gpu_hours: number;
  memory_gib_hours: number;
  fitted_memory: { saved_gib_hours: number } | null;
}

interface Reported {
  workflow: Workflow & { labels: Record<string, string> };
  stages: ReportStage[];
  timelines: Timeline[];
  efficiency: Efficiency[];
  cpu_efficiency: number | null;
  /** Stages of which attempts were given less memory than they asked for, each with its sentence. */
  fitted: [string, string][];
  failed: Failed[];
  failed_more: number;
}

interface Report {
  version: string;
  made_at: string;
  runs: Reported[];
}

const NONE = "–";
const OTHER = " of the other run";

function percent(part: number | null): string {
  return part === null ? NONE : `${Math.round(100 * part)} %`;
}

function at(text: string | null): string {
  return text ? new Date(text).toLocaleString([], { dateStyle: "medium", timeStyle: "medium", hour12: false }) : NONE;
}

function took(run: Workflow): number | null {
  return run.started_at && run.ended_at ? Date.parse(run.ended_at) - Date.parse(run.started_at) : null;
}

function sum(values: number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

function amount(hours: number): string {
  return hours === 0 ? "0" : hours >= 1 ? hours.toFixed(2) : hours.toFixed(4);
}

function App({ report }: { report: Report }) {
  const [first, second] = report.runs;
  if (!first) return <main><p class="note bad">This report holds no run.</p></main>;
  return (
    <main class="report">
      <Head run={first} />
      {second && <Compared one={first} other={second} />}
      <RunReport run={first} other={false} />
      {second && (
        <>
          <hr />
          <Head run={second} />
          <RunReport run={second} other={true} />
        </>
      )}
      <footer class="muted small">
        <p>Made by flowsched {report.version} at {at(report.made_at)}. Times are of this browser's time zone.</p>
      </footer>
    </main>
  );
}

function Head({ run }: { run: Reported }) {
  const { workflow, stages } = run;
  const { done, all } = progress(workflow.counts);
  const time = took(workflow);
  const labels = Object.entries(workflow.labels);
  return (
    <>
      <h1>{workflow.name} <StateWord state={workflow.state} returned={workflow.returned} /></h1>
      <dl class="facts">
        <div><dt>Id</dt><dd><code>{workflow.id}</code></dd></div>
        <div><dt>Queue</dt><dd>{workflow.queue}</dd></div>
        {workflow.user && <div><dt>User</dt><dd>{workflow.user}</dd></div>}
        {workflow.source && <div><dt>Engine</dt><dd>{workflow.source}</dd></div>}
        {labels.length > 0 && <div><dt>Labels</dt><dd>{labels.map(([key, value]) => `${key}=${value}`).join(", ")}</dd></div>}
        <div><dt>Accepted</dt><dd>{at(workflow.created_at)}</dd></div>
        <div><dt>Time</dt><dd>{time === null ? "it has not ended" : `${duration(time)}${workflow.state === "SUCCEEDED" ? "" : ", unfinished"}`}</dd></div>
        <div><dt>Tasks</dt><dd>{count(done)} of {count(all)} succeeded</dd></div>
        {stages.some((each) => each.cached > 0) && <div><dt>Taken from the cache</dt><dd>{counted(sum(stages.map((each) => each.cached)), "task")}</dd></div>}
        <div><dt>Attempts that failed</dt><dd>{count(run.failed.length + run.failed_more)}</dd></div>
        <div><dt>Core-hours held</dt><dd>{amount(sum(stages.map((each) => each.core_hours)))}</dd></div>
        <div><dt>GiB-hours held</dt><dd>{amount(sum(stages.map((each) => each.memory_gib_hours)))}</dd></div>
        {run.fitted.length > 0 && <div><dt>GiB-hours saved</dt><dd>{amount(sum(stages.map((each) => each.fitted_memory?.saved_gib_hours ?? 0)))}</dd></div>}
        {stages.some((each) => each.gpu_hours > 0) && <div><dt>GPU-hours held</dt><dd>{amount(sum(stages.map((each) => each.gpu_hours)))}</dd></div>}
        <div><dt>CPU efficiency</dt><dd>{percent(run.cpu_efficiency)}</dd></div>
        <div><dt>Input found on the node</dt><dd>{bytes(sum(stages.map((each) => each.bytes_local)))}</dd></div>
        <div><dt>Input moved</dt><dd>{bytes(sum(stages.map((each) => each.bytes_moved)))}</dd></div>
      </dl>
      <StateBar counts={workflow.counts} returned={workflow.returned} />
      {workflow.reason && <p class="note bad">{workflow.reason}</p>}
    </>
  );
}

function RunReport({ run, other }: { run: Reported; other: boolean }) {
  const { stages } = run;
  const [stage, setStage] = useState<string | undefined>(undefined);
  const [row, setRow] = useState(-1);
  const table = useMemo(() => new TaskTable(run.timelines), [run]);
  const byNumber = useMemo(() => new Map(stages.map((each) => [each.number, each])), [stages]);
  const number = stage === undefined ? -1 : stages.find((each) => each.name === stage)?.number ?? -1;
  const rows = useMemo(() => {
    const all = Array.from({ length: table.length }, (_, each) => each);
    return Int32Array.from(number < 0 ? all : all.filter((each) => table.stage[each] === number));
  }, [table, number]);
  const now = Math.max(...run.timelines.map((page) => page.now_ms), 0);
  const name = (each: number): string => table.nameOf(each, byNumber.get(table.stage[each]!));
  const shortName = (each: number): string => table.shortNameOf(each, byNumber.get(table.stage[each]!));
  return (
    <>
      {stages.length > 1 && stages.length <= MOST_STAGES && (
        <Part id="graph" other={other} title="Stages">
          <Dag
            stages={stages}
            selected={stage}
            onSelect={(chosen) => setStage((before) => (before === chosen ? undefined : chosen))}
            label={`Graph of stages${other ? OTHER : ""}`}
            direction={innerWidth < 700 ? "TB" : "LR"}
          />
          <p class="muted small">The thick line is the critical path: the stages that the end waited for. A stage shows its tasks alone in the timeline.</p>
        </Part>
      )}
      <Part id="tasks" other={other} title={stage === undefined ? "Timeline" : `Timeline of ${stage}`}>
        {table.more && <p class="note">The first {count(table.length)} of {count(run.workflow.tasks)} tasks are shown.</p>}
        <Gantt
          table={table}
          version={0}
          rows={rows}
          name={name}
          shortName={shortName}
          now={now}
          height={Math.min(460, Math.max(120, rows.length * 18 + 34))}
          selected={row}
          onSelect={setRow}
        />
      </Part>
      <Usage run={run} other={other} />
      <Waits stages={stages} table={table} other={other} />
      <Data run={run} other={other} />
      <Retries run={run} other={other} />
    </>
  );
}

function Part({ id, other, title, children }: { id: string; other: boolean; title: string; children: ComponentChildren }) {
  const named = other ? `other-${id}` : id;
  return (
    <section aria-labelledby={named}>
      <h2 id={named}>{title}{other && <span class="hidden">{OTHER}</span>}</h2>
      {children}
    </section>
  );
}

/** A table that scrolls by itself where the window is narrow. */
function Wide({ class: kind, label, children }: { class: string; label: string; children: ComponentChildren }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={label}>
      <table class={kind}>{children}</table>
    </div>
  );
}

function Meter({ part, told }: { part: number | null; told: string }) {
  if (part === null) return <span class="muted">{NONE}</span>;
  const kind = part > 1.05 ? "over" : part < 0.35 ? "low" : "";
  return (
    <>
      <span class="meter" role="img" aria-label={told} title={told}>
        <span class={kind} style={{ width: `${Math.min(100, 100 * part)}%` }} />
      </span>{" "}
      <span class="number">{percent(part)}</span>
    </>
  );
}

function Usage({ run, other }: { run: Reported; other: boolean }) {
  const advised = run.efficiency.filter((each) => each.advice.length > 0);
  const measured = run.efficiency.some((each) => each.cpu_seconds !== null || each.memory_used_bytes !== null);
  return (
    <Part id="usage" other={other} title="Used, of what was asked for">
      {!measured && <p class="note">Nothing was measured: tasks came from the cache, no attempt has ended yet, or its node has no agent that measures.</p>}
      <Wide class="list" label={`Table: Used, of what was asked for${other ? OTHER : ""}`}>
        <thead>
          <tr>
            <th scope="col">Stage</th>
            <th scope="col" class="right">Attempts</th>
            <th scope="col" class="right">Cores asked</th>
            <th scope="col" class="right">busy at most</th>
            <th scope="col">CPU</th>
            <th scope="col" class="right">Memory asked</th>
            <th scope="col" class="right">peak</th>
            <th scope="col">Memory</th>
          </tr>
        </thead>
        <tbody>
          {run.efficiency.map((each) => (
            <tr key={each.stage}>
              <td class="wide">{each.stage}</td>
              <td class="number">{count(each.attempts)}</td>
              <td class="number">{each.cores_asked}</td>
              <td class="number">{each.cores_used === null ? NONE : each.cores_used.toFixed(2)}</td>
              <td class="meters"><Meter part={each.cpu_efficiency} told={`CPU time of ${each.stage}: ${percent(each.cpu_efficiency)} of cores times running time`} /></td>
              <td class="number">{each.memory_asked_bytes ? bytes(each.memory_asked_bytes) : NONE}</td>
              <td class="number">{each.memory_used_bytes === null ? NONE : bytes(each.memory_used_bytes)}</td>
              <td class="meters"><Meter part={each.memory_efficiency} told={`Peak memory of ${each.stage}: ${percent(each.memory_efficiency)} of what that attempt asked for`} /></td>
            </tr>
          ))}
        </tbody>
      </Wide>
      {run.fitted.length > 0 && (
        <div class="card">
          <h3>Memory that fits</h3>
          <ul class="reasons">
            {run.fitted.map(([stage, line]) => <li key={stage}><b>{stage}</b>, {line}</li>)}
          </ul>
        </div>
      )}
      {advised.length > 0 && (
        <div class="card">
          <h3>Ask for instead</h3>
          <ul class="reasons">
            {advised.flatMap((each) => each.advice.map((line) => <li key={`${each.stage} ${line}`}><b>{each.stage}</b>, {line}</li>))}
          </ul>
        </div>
      )}
    </Part>
  );
}

interface Waited {
  stage: ReportStage;
  behind: Stage | undefined;
  ready: number;
  room: number;
  data: number;
  begun: number;
  end: number;
}

/** When each stage's tasks were ready, what the slowest of them waited for, and when the stage ended. */
function waits(stages: readonly ReportStage[], table: TaskTable): Waited[] {
  const byName = new Map(stages.map((stage) => [stage.name, stage]));
  const found = new Map(stages.map((stage) => {
    const parents = stage.needs.flatMap((name) => byName.get(name) ?? []);
    const end = (each: Stage) => (each.ended_at ? Date.parse(each.ended_at) : 0);
    const behind = parents.length ? parents.reduce((a, b) => (end(b) > end(a) ? b : a)) : undefined;
    return [stage.number, { stage, behind, ready: Infinity, room: 0, data: 0, begun: Infinity, end: 0 } as Waited];
  }));
  for (let row = 0; row < table.length; row++) {
    const of = found.get(table.stage[row]!);
    const ready = table.ready[row]!;
    if (!of || Number.isNaN(ready)) continue;
    const staging = table.stagingIn[row]!;
    const staged = table.staged[row]!;
    // It may have ended before it ran.
    const bound = Number.isNaN(table.bound[row]!) && !table.isCached(row) ? table.ended[row]! : table.bound[row]!;
    of.ready = Math.min(of.ready, ready);
    if (!Number.isNaN(bound)) {
      const data = Number.isNaN(staging) ? 0 : (Number.isNaN(staged) ? bound : staged) - staging;
      of.room = Math.max(of.room, bound - ready - data);
      of.data = Math.max(of.data, data);
    }
    if (!Number.isNaN(table.started[row]!)) of.begun = Math.min(of.begun, table.started[row]!);
    if (!Number.isNaN(table.ended[row]!)) of.end = Math.max(of.end, table.ended[row]!);
  }
  return [...found.values()].filter((each) => each.ready !== Infinity);
}

function Waits({ stages, table, other }: { stages: ReportStage[]; table: TaskTable; other: boolean }) {
  const path = useMemo(() => new Set(criticalPath(stages)), [stages]);
  const rows = useMemo(() => waits(stages, table), [stages, table]);
  if (rows.length === 0) return null;
  return (
    <Part id="waits" other={other} title="What waited for what">
      <Wide class="list" label={`Table: What waited for what${other ? OTHER : ""}`}>
        <thead>
          <tr>
            <th scope="col">Stage</th>
            <th scope="col">Waited for the stage</th>
            <th scope="col" class="right">Ready at</th>
            <th scope="col" class="right">For room, at most</th>
            <th scope="col" class="right">For data, at most</th>
            <th scope="col" class="right">First task ran at</th>
            <th scope="col" class="right">Ended at</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((each) => (
            <tr key={each.stage.name}>
              <td class="wide">{each.stage.name}{path.has(each.stage.name) && <span class="tag">critical path</span>}</td>
              <td>{each.behind ? each.behind.name : <span class="muted">none</span>}</td>
              <td class="number">{duration(each.ready)}</td>
              <td class="number">{duration(each.room)}</td>
              <td class="number">{duration(each.data)}</td>
              <td class="number">{each.begun === Infinity ? NONE : duration(each.begun)}</td>
              <td class="number">{each.end ? duration(each.end) : NONE}</td>
            </tr>
          ))}
        </tbody>
      </Wide>
      <p class="muted small">Moments are counted from the acceptance of the run; of a task that was tried again, from its last attempt.</p>
    </Part>
  );
}

function Data({ run, other }: { run: Reported; other: boolean }) {
  const used = new Map(run.efficiency.map((each) => [each.stage, each]));
  const said = (amount: number | null | undefined) => (amount === null || amount === undefined ? NONE : bytes(amount));
  return (
    <Part id="data" other={other} title="Data and hours">
      <Wide class="list" label={`Table: Data and hours${other ? OTHER : ""}`}>
        <thead>
          <tr>
            <th scope="col">Stage</th>
            <th scope="col">State</th>
            <th scope="col" class="right">Input on the node</th>
            <th scope="col" class="right">Input moved</th>
            <th scope="col" class="right">Read</th>
            <th scope="col" class="right">Written</th>
            <th scope="col" class="right">Ran</th>
            <th scope="col" class="right">Core-hours held</th>
            <th scope="col" class="right">GiB-hours held</th>
          </tr>
        </thead>
        <tbody>
          {run.stages.map((stage) => (
            <tr key={stage.name}>
              <td class="wide">{stage.name}</td>
              <td><StateWord state={stage.state} returned={stage.returned} /></td>
              <td class="number">{bytes(stage.bytes_local)}</td>
              <td class="number">{bytes(stage.bytes_moved)}</td>
              <td class="number">{said(used.get(stage.name)?.read_bytes)}</td>
              <td class="number">{said(used.get(stage.name)?.written_bytes)}</td>
              <td class="number">{duration(1000 * stage.running_seconds)}</td>
              <td class="number">{amount(stage.core_hours)}</td>
              <td class="number">{amount(stage.memory_gib_hours)}</td>
            </tr>
          ))}
        </tbody>
      </Wide>
    </Part>
  );
}

function Retries({ run, other }: { run: Reported; other: boolean }) {
  return (
    <Part id="failed" other={other} title="Attempts that did not succeed">
      {run.failed.length === 0 && <p class="muted">None: each task succeeded at its first attempt, or has not ended.</p>}
      {run.failed.length > 0 && (
        <Wide class="list" label={`Table: Attempts that did not succeed${other ? OTHER : ""}`}>
          <thead>
            <tr>
              <th scope="col">Task</th>
              <th scope="col" class="right">Attempt</th>
              <th scope="col">Node</th>
              <th scope="col" class="right">Exit code</th>
              <th scope="col" class="right">Ran</th>
              <th scope="col">Why</th>
            </tr>
          </thead>
          <tbody>
            {run.failed.map((each) => (
              <tr key={`${each.stage} ${each.index} ${each.attempt}`}>
                <td class="wide">{each.stage}[{each.index}]{each.item && ` (${each.item})`}</td>
                <td class="number">{each.attempt}</td>
                <td>{each.node}</td>
                <td class="number">{each.exit_code ?? NONE}</td>
                <td class="number">{duration(1000 * each.ran_seconds)}</td>
                <td class="wide">{each.reason && <b>{each.reason} </b>}{each.message || (each.reason ? "" : "its program ended so; its log says why")}</td>
              </tr>
            ))}
          </tbody>
        </Wide>
      )}
      {run.failed_more > 0 && <p class="muted">And {counted(run.failed_more, "attempt")} more: <code>flowsched trace</code> has them all.</p>}
    </Part>
  );
}

interface Pair {
  what: string;
  one: number | null;
  other: number | null;
  said: (value: number) => string;
  more?: "good" | "bad" | "neither";
  /** A share: its change is told in percentage points. */
  share?: boolean;
}

/** From the other run to this one. */
function change(one: number | null, other: number | null, more: Pair["more"] = "bad", share = false) {
  if (one === null || other === null || one === other) return <td class="number muted">{NONE}</td>;
  const kind = more === "neither" ? "" : (one > other) === (more === "bad") ? "worse" : "better";
  const sign = one > other ? "+" : "−";
  if (share) {
    const points = Math.abs(Math.round(100 * one) - Math.round(100 * other));
    return <td class={`number ${points ? kind : "muted"}`}>{points ? `${sign}${counted(points, "point")}` : NONE}</td>;
  }
  if (other === 0) return <td class="number">new</td>;
  const part = one / other - 1;
  if (Math.abs(part) < 0.005) return <td class="number muted">0 %</td>;
  const said = part >= 9 ? `×${count(Math.round(part + 1))}` : `${sign}${Math.round(100 * Math.abs(part))} %`;
  return <td class={`number ${kind}`}>{said}</td>;
}

function wall(stage: Stage): number | null {
  return stage.state === "SUCCEEDED" && stage.started_at && stage.ended_at ? Date.parse(stage.ended_at) - Date.parse(stage.started_at) : null;
}

function Compared({ one, other }: { one: Reported; other: Reported }) {
  const seconds = (value: number) => duration(1000 * value);
  const taken = (run: Reported) => sum(run.stages.map((each) => each.cached));
  // What was taken from the cache is no gain in speed: its change is neither good nor bad.
  const less = taken(one) === taken(other) ? "bad" : "neither";
  // The time of a run that left tasks undone is no time that another could be compared with.
  const finished = (run: Reported) => (run.workflow.state === "SUCCEEDED" ? took(run.workflow) : null);
  const undone = (run: Reported) => progress(run.workflow.counts).all - progress(run.workflow.counts).done - (run.workflow.counts.SKIPPED ?? 0);
  const whole: Pair[] = [
    { what: "Tasks that have not succeeded", one: undone(one), other: undone(other), said: count },
    { what: "Tasks taken from the cache", one: taken(one), other: taken(other), said: count, more: "neither" },
    { what: "Time", one: finished(one), other: finished(other), said: duration, more: less },
    { what: "Core-hours held", more: less, one: sum(one.stages.map((each) => each.core_hours)), other: sum(other.stages.map((each) => each.core_hours)), said: amount },
    { what: "CPU efficiency", one: one.cpu_efficiency, other: other.cpu_efficiency, said: percent, more: "good", share: true },
    { what: "Input moved", more: less, one: sum(one.stages.map((each) => each.bytes_moved)), other: sum(other.stages.map((each) => each.bytes_moved)), said: bytes },
    { what: "Attempts that failed", one: one.failed.length + one.failed_more, other: other.failed.length + other.failed_more, said: count },
  ];
  const names = [...new Set([...one.stages, ...other.stages].map((stage) => stage.name))];
  const find = (run: Reported, name: string) => {
    const stage = run.stages.find((each) => each.name === name);
    return { stage, used: run.efficiency.find((each) => each.stage === name) };
  };
  const shown = (value: number | null | undefined, said: (value: number) => string) => (value === null || value === undefined ? NONE : said(value));
  return (
    <section aria-labelledby="compared">
      <h2 id="compared">Compared with {other.workflow.name} <code>{other.workflow.id}</code></h2>
      <Wide class="list" label="Table: the whole run, compared">
        <thead>
          <tr>
            <th scope="col">The whole run</th>
            <th scope="col" class="right">this one</th>
            <th scope="col" class="right">the other</th>
            <th scope="col" class="right">change</th>
          </tr>
        </thead>
        <tbody>
          {whole.map((pair) => (
            <tr key={pair.what}>
              <td>{pair.what}</td>
              <td class="number">{shown(pair.one, pair.said)}</td>
              <td class="number">{shown(pair.other, pair.said)}</td>
              {change(pair.one, pair.other, pair.more, pair.share)}
            </tr>
          ))}
        </tbody>
      </Wide>
      <Wide class="list compared" label="Table: stages, compared">
        <thead>
          <tr>
            <th scope="col">Stage</th>
            <th scope="col">State</th>
            <th scope="col" class="right">Time</th>
            <th scope="col" class="right">other</th>
            <th scope="col" class="right">change</th>
            <th scope="col" class="right">Ran, all tasks</th>
            <th scope="col" class="right">other</th>
            <th scope="col" class="right">change</th>
            <th scope="col" class="right">Peak memory</th>
            <th scope="col" class="right">other</th>
            <th scope="col" class="right">change</th>
          </tr>
        </thead>
        <tbody>
          {names.map((name) => {
            const [a, b] = [find(one, name), find(other, name)];
            const times = [a.stage ? wall(a.stage) : null, b.stage ? wall(b.stage) : null] as const;
            const ran = [a.stage?.running_seconds || null, b.stage?.running_seconds || null] as const;
            const peaks = [a.used?.memory_used_bytes ?? null, b.used?.memory_used_bytes ?? null] as const;
            const cached = [a.stage?.cached ?? 0, b.stage?.cached ?? 0] as const;
            const more = cached[0] === cached[1] ? "bad" : "neither";
            return (
              <tr key={name}>
                <td class="wide">
                  {name}
                  {cached[0] > 0 && <span class="tag">{count(cached[0])} cached</span>}
                  {cached[1] > 0 && <span class="tag">other: {count(cached[1])} cached</span>}
                </td>
                <td>
                  {a.stage ? <StateWord state={a.stage.state} returned={a.stage.returned} /> : <span class="muted">not in this one</span>}
                  {b.stage?.state !== a.stage?.state && <span class="why">other: {b.stage?.state ?? "not in it"}</span>}
                </td>
                <td class="number">{shown(times[0], duration)}</td>
                <td class="number">{shown(times[1], duration)}</td>
                {change(times[0], times[1], more)}
                <td class="number">{shown(ran[0], seconds)}</td>
                <td class="number">{shown(ran[1], seconds)}</td>
                {change(ran[0], ran[1], more)}
                <td class="number">{shown(peaks[0], bytes)}</td>
                <td class="number">{shown(peaks[1], bytes)}</td>
                {change(peaks[0], peaks[1])}
              </tr>
            );
          })}
        </tbody>
      </Wide>
    </section>
  );
}

const report = JSON.parse(document.getElementById("data")!.textContent!) as Report;
render(<App report={report} />, document.getElementById("app")!);
