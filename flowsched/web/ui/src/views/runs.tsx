// The list of runs, live ones first, with the state and the first reason of each.

import { useEffect, useState } from "preact/hooks";
import { get } from "../api";
import { Failure, Loading } from "../components/notes";
import { StateBar, StateWord } from "../components/statebar";
import { useLive, useNow } from "../live";
import { count, duration, moment, shortId, since, startsIn } from "../model/format";
import { ended, progress } from "../model/states";
import type { Workflow, WorkflowPage } from "../model/views";
import { href } from "../router";

const STATES = ["PENDING", "QUEUED", "STAGING", "STARTING", "RUNNING", "PAUSED", "CANCELLING", "ENGINE", "SUCCEEDED", "FAILED", "CANCELLED"];
const PAGE = 50;
/** The list is asked for when so long no key was pressed. */
const TYPED_MS = 250;

export function RunsView() {
  const [state, setState] = useState("");
  const [typed, setTyped] = useState("");
  const [search, setSearch] = useState("");
  const [limit, setLimit] = useState(PAGE);
  const query = new URLSearchParams({ limit: String(limit), ...(state && { state }), ...(search && { search }) });
  useEffect(() => {
    const timer = setTimeout(() => setSearch(typed.trim()), TYPED_MS);
    return () => clearTimeout(timer);
  }, [typed]);
  const live = useLive<WorkflowPage>(`runs?${query}`, (signal) => get(`/workflows?${query}`, signal), {
    stream: "/events",
    every: 10_000,
  });
  const runs = live.value?.workflows;
  const users = new Set(runs?.map((run) => run.user)).size > 1;
  const now = useNow(runs?.some((run) => !ended(run.state)) ? 1000 : 30_000);
  return (
    <>
      <div class="heading">
        <h1>Runs</h1>
        <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
          <input aria-label="Part of a name, or the beginning of an id" type="search" placeholder="name or id" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
          <select aria-label="State" value={state} onChange={(event) => setState(event.currentTarget.value)}>
              <option value="">any state</option>
              {STATES.map((each) => <option key={each}>{each}</option>)}
            </select>
        </form>
      </div>
      <Failure message={live.error} />
      {!runs && !live.error && <Loading />}
      {runs && runs.length === 0 && (
        <p class="note">
          {state || search ? "No run is like that." : <>There are no runs yet. <code>flowsched submit workflow.json</code> submits one.</>}
        </p>
      )}
      {runs && runs.length > 0 && (
        <table class="list runs">
          <thead>
            <tr>
              <th scope="col">Name</th>
              <th scope="col">State</th>
              <th scope="col">Tasks</th>
              <th scope="col">Queue</th>
              {users && <th scope="col">User</th>}
              <th scope="col">Accepted</th>
              <th scope="col">Time</th>
            </tr>
          </thead>
          <tbody>{runs.map((run) => <Row key={run.id} run={run} users={users} now={now} />)}</tbody>
        </table>
      )}
      {live.value?.next_page_token && limit < 1000 && (
        <p><button type="button" onClick={() => setLimit(Math.min(1000, limit * 2))}>Show more</button></p>
      )}
    </>
  );
}

/** `users`: whether the list has runs of several users, and so a column for them. */
function Row({ run, users, now }: { run: Workflow; users: boolean; now: number }) {
  const { done, all } = progress(run.counts);
  const why = run.waiting?.message ?? run.reason;
  const to = run.ended_at ? Date.parse(run.ended_at) : now;
  return (
    <tr>
      <td class="wide">
        <a href={href("runs", run.id)}>{run.name}</a> <code class="id">{shortId(run.id)}</code>
        {why && <span class={run.waiting?.permanent || run.state === "FAILED" ? "why bad" : "why"}>{run.waiting ? `${run.waiting.stage}: ${startsIn(run.waiting, now)}${why}` : why}</span>}
      </td>
      <td><StateWord state={run.state} returned={run.returned} /></td>
      <td class="bar"><StateBar counts={run.counts} returned={run.returned} /> <span class="number">{count(done)}/{count(all || run.tasks)}</span></td>
      <td>{run.queue}</td>
      {users && <td>{run.user}</td>}
      <td title={moment(run.created_at)}>{since(run.created_at, now)}</td>
      <td class="number">{run.started_at ? duration(to - Date.parse(run.started_at)) : "—"}</td>
    </tr>
  );
}
