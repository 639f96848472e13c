// The cluster as a heat map: a tile for each node, as dark as it is full, with the gangs it has.

import { useState } from "preact/hooks";
import { get } from "../api";
import { Failure, Loading } from "../components/notes";
import { useLive } from "../live";
import { bytes, count, counted, moment, quantity } from "../model/format";
import type { ClusterNode } from "../model/views";
import { href } from "../router";

export function ClusterView() {
  const live = useLive<ClusterNode[]>("nodes", (signal) => get("/nodes", signal), { stream: "/events", every: 3_000 });
  const [resource, setResource] = useState("cpu");
  const [chosen, setChosen] = useState<string | null>(null);
  const [gang, setGang] = useState<string | null>(null);
  const nodes = live.value;
  if (!nodes) return <><h1>Cluster</h1><Failure message={live.error} />{!live.error && <Loading />}</>;
  const resources = [...new Set(nodes.flatMap((node) => Object.keys(node.allocatable)))];
  const racks = [...new Set(nodes.map((node) => node.rack))];
  const gangs = [...new Set(nodes.flatMap((node) => Object.keys(node.gangs)))].sort();
  const letters = new Map(gangs.map((name, at) => [name, letter(at)]));
  const shown = nodes.find((node) => node.name === chosen);
  const total = (of: "allocatable" | "used") => nodes.reduce((sum, node) => sum + (node[of][resource] ?? 0), 0);
  return (
    <>
      <div class="heading">
        <h1>Cluster</h1>
        <form class="filters" onSubmit={(event) => event.preventDefault()}>
          <label>
            Colour by{" "}
            <select value={resource} onChange={(event) => setResource(event.currentTarget.value)}>
              {resources.map((each) => <option key={each}>{each}</option>)}
            </select>
          </label>
        </form>
      </div>
      <Failure message={live.error} />
      <p>
        {counted(nodes.length, "node")}{states(nodes)}. {resource}: {quantity(resource, total("used"))} of {quantity(resource, total("allocatable"))} used.
      </p>
      <p class="legend heatkey" aria-hidden="true">
        empty {[0, 1, 2, 3, 4, 5].map((step) => <span key={step} class={`swatch heat-${step}`} />)} full <span class="swatch heat-off" /> takes no tasks
      </p>
      {racks.map((rack) => (
        <section key={rack} aria-label={rack ? `Rack ${rack}` : "Nodes"}>
          {racks.length > 1 && <h2>{rack || "no rack"}</h2>}
          <div class="heatmap">
            {nodes.filter((node) => node.rack === rack).map((node) => (
              <Tile key={node.name} node={node} resource={resource} letters={letters} lit={gang !== null && gang in node.gangs} chosen={node.name === chosen} onChoose={() => setChosen(node.name === chosen ? null : node.name)} />
            ))}
          </div>
        </section>
      ))}
      {gangs.length > 0 && (
        <section aria-labelledby="gangs">
          <h2 id="gangs">Gangs</h2>
          <ul class="gangs">
            {gangs.slice(0, 100).map((name) => {
              const [workflow = "", stage = "", shard] = name.split("/");
              const on = nodes.filter((node) => name in node.gangs);
              const pods = on.reduce((sum, node) => sum + (node.gangs[name] ?? 0), 0);
              return (
                <li key={name}>
                  <button type="button" class="mark-gang" aria-pressed={gang === name} onClick={() => setGang(gang === name ? null : name)}>{letters.get(name)}</button>{" "}
                  <a href={href("runs", workflow)}>{stage}{shard !== "0" && ` [${shard}]`}</a> {counted(pods, "pod")} on {counted(on.length, "node")}: {on.slice(0, 8).map((node) => node.name).join(", ")}{on.length > 8 && " …"}
                </li>
              );
            })}
          </ul>
        </section>
      )}
      {shown && <Detail node={shown} />}
    </>
  );
}

// ", 1 draining, 2 not ready": how many nodes are in each state that takes no tasks.
function states(nodes: ClusterNode[]): string {
  const off = nodes.filter((node) => node.state !== "READY").map((node) => node.state);
  return [...new Set(off)].sort().map((state) => `, ${count(off.filter((each) => each === state).length)} ${words(state)}`).join("");
}

function letter(at: number): string {
  return at < 26 ? String.fromCharCode(65 + at) : `${letter(Math.floor(at / 26) - 1)}${letter(at % 26)}`;
}

interface TileProps {
  node: ClusterNode;
  resource: string;
  letters: Map<string, string>;
  lit: boolean;
  chosen: boolean;
  onChoose: () => void;
}

function Tile({ node, resource, letters, lit, chosen, onChoose }: TileProps) {
  const all = node.allocatable[resource] ?? 0;
  const used = node.used[resource] ?? 0;
  const part = all ? used / all : 0;
  const off = node.state !== "READY";
  const gangs = Object.keys(node.gangs);
  const step = part === 0 ? 0 : Math.min(5, Math.max(1, Math.ceil(part * 5)));
  const shown = off ? words(node.state) : `${Math.round(100 * part)}%`;
  const marks = gangs.slice(0, 4).map((name) => letters.get(name));
  const told = [`${resource} used`, counted(node.starting + node.running, "task"), counted(gangs.length, "gang")].join(", ");
  return (
    <button type="button" class={`tile ${off ? "heat-off" : `heat-${step}`}${lit ? " lit" : ""}`} aria-pressed={chosen} title={`${node.name}: ${shown} ${told}`} onClick={onChoose}>
      <span class="tile-name">{node.name}</span>{" "}
      <span class="tile-part">{shown}</span>{" "}<span class="hidden">{told}</span>{" "}
      <span class="tile-gangs">{marks.map((mark) => <span key={mark} class="mark-gang">{mark}</span>)}</span>
    </button>
  );
}

// The words of `flowsched nodes` for the states of a node.
function words(state: string): string {
  return state.toLowerCase().replace("_", " ");
}

function DrainFacts({ drain }: { drain: NonNullable<ClusterNode["drain"]> }) {
  return (
    <>
      <div><dt>Drained from</dt><dd>{moment(drain.from_at)}</dd></div>
      {drain.until_at && <div><dt>Its tasks are moved</dt><dd>{moment(drain.until_at)}</dd></div>}
      {drain.by && <div><dt>Drained by</dt><dd>{drain.by}</dd></div>}
      {drain.reason && <div><dt>Reason</dt><dd>{drain.reason}</dd></div>}
    </>
  );
}

function Detail({ node }: { node: ClusterNode }) {
  return (
    <section class="card" aria-labelledby="node">
      <h2 id="node">{node.name}</h2>
      <dl class="facts">
        {Object.entries(node.allocatable).map(([resource, all]) => (
          <div key={resource}><dt>{resource}</dt><dd>{quantity(resource, node.used[resource] ?? 0)} of {quantity(resource, all)}</dd></div>
        ))}
        <div><dt>Tasks</dt><dd>{count(node.starting + node.running)}</dd></div>
        <div><dt>Cache</dt><dd>{bytes(node.cache_bytes)}{node.cache_limit_bytes > 0 && ` of ${bytes(node.cache_limit_bytes)}`} in {counted(node.datasets, "dataset")}</dd></div>
        <div><dt>Copied in, out</dt><dd>{bytes(node.bytes_in)}, {bytes(node.bytes_out)}</dd></div>
        <div><dt>State</dt><dd>{words(node.state)}</dd></div>
        {node.state === "NOT_READY" && node.message && <div><dt>Why</dt><dd>{node.message}</dd></div>}
        {node.drain && <DrainFacts drain={node.drain} />}
        {Object.entries(node.others).map(([what, rate]) => <div key={what}><dt>Others use of {what}</dt><dd>{bytes(rate)}/s</dd></div>)}
      </dl>
    </section>
  );
}
