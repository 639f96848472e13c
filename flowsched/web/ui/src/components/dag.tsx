// The DAG of a run: a box for each stage, with its shards as a bar, and the critical path marked.

import { graphlib, layout } from "@dagrejs/dagre";
import { useMemo } from "preact/hooks";
import { criticalPath } from "../model/critical";
import { count } from "../model/format";
import { exitCodes, group, grouped, progress } from "../model/states";
import type { Stage } from "../model/views";

export interface DagProps {
  stages: readonly Stage[];
  /** The stage that is chosen, if one is. */
  selected?: string | undefined;
  onSelect?: (stage: string) => void;
  /** "LR" from left to right, "TB" from top to bottom. */
  direction?: "LR" | "TB";
  /** How it is called: two graphs of one page differ in it. */
  label?: string;
}

/** With more stages the graph says nothing any more, and its layout takes seconds. */
export const MOST_STAGES = 300;
/** A graph that is too wide shrinks to this part of its size before it scrolls. */
const SMALLEST = 0.6;
const WIDTH = 190;
const HEIGHT = 62;

interface Layout {
  width: number;
  height: number;
  places: Map<string, { x: number; y: number }>;
  edges: { from: string; to: string; path: string }[];
}

/** Where the boxes go. Depends on names and needs alone, so that a change of states moves nothing. */
export function placed(shape: readonly { name: string; needs: readonly string[] }[], direction: "LR" | "TB"): Layout {
  const graph = new graphlib.Graph();
  graph.setGraph({ rankdir: direction, nodesep: 18, ranksep: 44, marginx: 6, marginy: 6 });
  graph.setDefaultEdgeLabel(() => ({}));
  const names = new Set(shape.map((stage) => stage.name));
  for (const stage of shape) graph.setNode(stage.name, { width: WIDTH, height: HEIGHT });
  for (const stage of shape) {
    for (const parent of new Set(stage.needs)) if (names.has(parent)) graph.setEdge(parent, stage.name);
  }
  layout(graph);
  const places = new Map(shape.map((stage) => {
    const { x, y } = graph.node(stage.name) as { x: number; y: number };
    return [stage.name, { x: x - WIDTH / 2, y: y - HEIGHT / 2 }];
  }));
  const edges = graph.edges().map((edge: { v: string; w: string }) => {
    const points = (graph.edge(edge) as { points: { x: number; y: number }[] }).points;
    return { from: edge.v, to: edge.w, path: curve(points) };
  });
  const of = graph.graph() as { width?: number; height?: number };
  return { width: Math.ceil(of.width ?? 0), height: Math.ceil(of.height ?? 0), places, edges };
}

function curve(points: readonly { x: number; y: number }[]): string {
  const [first, ...rest] = points.map((point) => `${point.x.toFixed(1)},${point.y.toFixed(1)}`);
  return `M${first} L${rest.join(" ")}`;
}

export function Dag({ stages, selected, onSelect, direction = "LR", label = "Graph of stages" }: DagProps) {
  const shape = JSON.stringify(stages.map(({ name, needs }) => ({ name, needs })));
  const found = useMemo(() => placed(JSON.parse(shape) as Stage[], direction), [shape, direction]);
  const path = criticalPath(stages);
  const marked = new Set(path);
  const steps = new Set(path.slice(1).map((name, at) => `${path[at]}\n${name}`));
  return (
    <div class="dag" tabIndex={0} role="region" aria-label={label}>
      <svg style={{ width: "100%", maxWidth: `${found.width}px`, minWidth: `${Math.round(found.width * SMALLEST)}px` }} viewBox={`0 0 ${found.width} ${found.height}`}>
        <defs>
          <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" markerUnits="userSpaceOnUse" orient="auto">
            <path d="M0,0 L8,4 L0,8 z" class="arrow" />
          </marker>
        </defs>
        {found.edges.map((edge) => (
          <path
            key={`${edge.from}\n${edge.to}`}
            d={edge.path}
            class={steps.has(`${edge.from}\n${edge.to}`) ? "edge critical" : "edge"}
            marker-end="url(#arrow)"
          />
        ))}
        {stages.map((stage) => {
          const place = found.places.get(stage.name);
          return place && (
            <Box
              key={stage.name}
              stage={stage}
              x={place.x}
              y={place.y}
              critical={marked.has(stage.name)}
              selected={stage.name === selected}
              onSelect={onSelect}
            />
          );
        })}
      </svg>
    </div>
  );
}

interface BoxProps {
  stage: Stage;
  x: number;
  y: number;
  critical: boolean;
  selected: boolean;
  onSelect: ((stage: string) => void) | undefined;
}

function Box({ stage, x, y, critical, selected, onSelect }: BoxProps) {
  const { done, all } = progress(stage.counts);
  const inner = WIDTH - 20;
  let left = 10;
  const bars = grouped(stage.counts, stage.returned).map(([of, tasks]) => {
    const width = (inner * tasks) / Math.max(1, all);
    const bar = <rect key={of} class={`bar-${of}`} x={left} y={42} width={width} height={9} />;
    left += width;
    return bar;
  });
  const kind = stage.gang ? `gang of ${count(stage.members)}` : `${count(done)}/${count(all)}`;
  const name = shortened(stage.name, 24);
  const codes = exitCodes(stage.returned);
  const told = `${stage.name}: ${done} of ${all} tasks have succeeded${codes && ` ${codes}`}${critical ? ", on the critical path" : ""}`;
  const choose = () => onSelect?.(stage.name);
  return (
    <g
      class={`box box-${group(stage.state)}${critical ? " critical" : ""}${selected ? " selected" : ""}`}
      transform={`translate(${x},${y})`}
      role="button"
      tabindex={0}
      aria-pressed={selected}
      onClick={choose}
      onKeyDown={(event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        choose();
      }}
    >
      <title>{stage.waiting ? `${told}; ${stage.waiting.message}` : told}</title>
      <rect class="frame" width={WIDTH} height={HEIGHT} rx={6} />
      <text class="name" x={10} y={19}>{name}</text>
      <text class="word" x={10} y={35}>{stage.state} <tspan class="exits">{codes}</tspan></text>
      <text class="word" x={WIDTH - 10} y={35} text-anchor="end">{kind}</text>
      <rect class="bar-pending" x={10} y={42} width={inner} height={9} />
      {bars}
    </g>
  );
}

function shortened(text: string, most: number): string {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}
