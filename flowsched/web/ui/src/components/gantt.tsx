// The Gantt of tasks, drawn on a canvas: 10,000 rows scroll as smoothly as ten, because only the rows in sight are drawn.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { duration } from "../model/format";
import { PHASES, type Span, type TaskTable } from "../model/tasks";
import { ended, group } from "../model/states";

export interface GanttProps {
  table: TaskTable;
  /** Changes whenever the table's contents do. */
  version: number;
  /** The rows of the table that are shown, in order. */
  rows: Int32Array;
  /** How a row is called. */
  name: (row: number) => string;
  /** The same in less room. */
  shortName: (row: number) => string;
  /** Now, or the time of the report, in ms since the table's `begin`. */
  now: number;
  /** Pixels; the rows scroll inside. */
  height: number;
  selected?: number;
  onSelect?: (row: number) => void;
  /** Enter, or a second click on the selected row. */
  onOpen?: (row: number) => void;
}

const ROW = 18;
const AXIS = 26;
const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 144e5, 432e5, 864e5];

interface Colours {
  [name: string]: string;
}

export function Gantt({ table, version, rows, name, shortName, now, height, selected = -1, onSelect, onOpen }: GanttProps) {
  const scroller = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [size, setSize] = useState({ width: 0, height });
  const [scheme, setScheme] = useState(0);
  const [zoom, setZoom] = useState<{ from: number; to: number } | null>(null);
  const [hovered, setHovered] = useState(-1);
  const end = useMemo(() => Math.max(1, table.last(now)), [table, version, now]);
  const from = zoom ? zoom.from : 0;
  const to = zoom ? zoom.to : end;
  const labels = Math.round(Math.min(220, Math.max(84, size.width * 0.24)));
  const place = rows.indexOf(selected);
  const returned = useMemo(() => rows.some((row) => table.hasReturned(row)), [table, version, rows]);

  const colours = useMemo<Colours>(() => {
    const style = scroller.current ? getComputedStyle(scroller.current) : undefined;
    const names = ["text", "muted", "line", "panel", "accent", "failed", "returned", "exits", ...PHASES];
    return Object.fromEntries(names.map((each) => [each, style?.getPropertyValue(`--${each}`).trim() || "#888"]));
  }, [scheme, size.width]);

  useEffect(() => {
    const box = scroller.current!;
    const observer = new ResizeObserver(() => setSize({ width: box.clientWidth, height: box.clientHeight }));
    observer.observe(box);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setScheme((before) => before + 1);
    dark.addEventListener("change", changed);
    return () => {
      observer.disconnect();
      dark.removeEventListener("change", changed);
    };
  }, []);

  const draw = useRef<() => void>(() => {});
  draw.current = () => {
    const surface = canvas.current;
    const box = scroller.current;
    if (!surface || !box || size.width === 0) return;
    const ratio = devicePixelRatio || 1;
    const [wide, high] = [Math.round(size.width * ratio), Math.round(size.height * ratio)];
    if (surface.width !== wide || surface.height !== high) {
      surface.width = wide;
      surface.height = high;
    }
    const to2d = surface.getContext("2d", { alpha: true })!;
    to2d.setTransform(ratio, 0, 0, ratio, 0, 0);
    to2d.clearRect(0, 0, size.width, size.height);
    const plot = size.width - labels - 8;
    const scale = plot / (to - from);
    drawGrid(to2d, plot, scale);
    drawRows(to2d, box.scrollTop, plot, scale);
    drawAxis(to2d, scale);
  };

  function drawRows(to2d: CanvasRenderingContext2D, top: number, plot: number, scale: number): void {
    const first = Math.max(0, Math.floor(top / ROW));
    const last = Math.min(rows.length, Math.ceil((top + size.height - AXIS) / ROW));
    const spans: Span[] = [];
    to2d.font = "12px system-ui, sans-serif";
    to2d.textBaseline = "middle";
    for (let at = first; at < last; at++) {
      const row = rows[at]!;
      const y = AXIS + at * ROW - top;
      if (row === selected || row === hovered) {
        to2d.fillStyle = colours["line"]!;
        to2d.fillRect(0, y, size.width, ROW);
      }
      to2d.save();
      to2d.beginPath();
      to2d.rect(0, y, labels - 6, ROW);
      to2d.clip();
      const failed = group(table.stateOf(row)) === "failed";
      const returned = table.hasReturned(row);
      to2d.fillStyle = failed ? colours["failed"]! : returned ? colours["exits"]! : colours["text"]!;
      const whole = name(row);
      to2d.fillText(to2d.measureText(whole).width > labels - 12 ? shortName(row) : whole, 6, y + ROW / 2 + 0.5);
      to2d.restore();
      const found = table.spans(row, now, spans);
      let [begin, end] = [plot, 0];
      for (let each = found - 1; each >= 0; each--) {
        const span = spans[each]!;
        const left = Math.max(0, (span.from - from) * scale);
        const right = Math.min(plot, (span.to - from) * scale);
        if (right < 0 || left > plot) continue;
        const thin = span.phase === "queued" || span.phase === "starting";
        const ran = failed ? "failed" : returned ? "returned" : "running";
        to2d.fillStyle = colours[span.phase === "running" ? ran : span.phase]!;
        to2d.fillRect(labels + left, y + (thin ? 6 : 3), Math.max(span.phase === "queued" ? 0.5 : 1.5, right - left), ROW - (thin ? 12 : 6));
        [begin, end] = [Math.min(begin, left), Math.max(end, right)];
      }
      if (ended(table.stateOf(row)) && (found === 0 || table.stateOf(row) !== "SUCCEEDED")) drawReason(to2d, row, y, begin, end, plot);
    }
  }

  /** Why a task ended so: behind its bars, which may be too short to be seen, or else before them. */
  function drawReason(to2d: CanvasRenderingContext2D, row: number, y: number, first: number, last: number, plot: number): void {
    const reason = table.reasons.get(row) || table.stateOf(row);
    to2d.fillStyle = colours["muted"]!;
    const room = to2d.measureText(reason).width + 4;
    if (last === 0 || last + room <= plot) to2d.fillText(reason, labels + last + 4, y + ROW / 2 + 0.5);
    else if (first >= room) to2d.fillText(reason, labels + first - room, y + ROW / 2 + 0.5);
  }

  function drawAxis(to2d: CanvasRenderingContext2D, scale: number): void {
    to2d.fillStyle = colours["panel"]!;
    to2d.fillRect(0, 0, size.width, AXIS - 1);
    to2d.fillStyle = colours["line"]!;
    to2d.fillRect(0, AXIS - 1, size.width, 1);
    for (const at of ticks(scale)) {
      const x = labels + (at - from) * scale;
      to2d.fillStyle = colours["line"]!;
      to2d.fillRect(x, AXIS - 6, 1, 6);
      to2d.fillStyle = colours["muted"]!;
      if (x + 50 < size.width) to2d.fillText(at === 0 ? "0" : duration(at), x + 3, AXIS / 2);
    }
  }

  /** Lines down from the axis, which the bars then cover. */
  function drawGrid(to2d: CanvasRenderingContext2D, plot: number, scale: number): void {
    to2d.fillStyle = colours["line"]!;
    for (const at of ticks(scale)) to2d.fillRect(labels + Math.min(plot, (at - from) * scale), AXIS, 1, size.height);
  }

  /** The moments that the axis names. */
  function ticks(scale: number): number[] {
    const step = STEPS.find((each) => each * scale >= 70) ?? STEPS[STEPS.length - 1]! * Math.ceil(70 / (STEPS[STEPS.length - 1]! * scale));
    const first = Math.ceil(from / step) * step;
    return Array.from({ length: Math.max(0, Math.floor((to - first) / step) + 1) }, (_, at) => first + at * step);
  }

  useEffect(() => draw.current());

  const waiting = useRef(0);
  const onScroll = () => {
    if (waiting.current) return;
    waiting.current = requestAnimationFrame(() => {
      waiting.current = 0;
      draw.current();
    });
  };
  useEffect(() => () => cancelAnimationFrame(waiting.current), []);

  function rowAt(event: MouseEvent): number {
    const box = scroller.current!;
    const y = event.clientY - box.getBoundingClientRect().top - AXIS + box.scrollTop;
    return rows[Math.floor(y / ROW)] ?? -1;
  }

  function select(at: number): void {
    const row = rows[Math.max(0, Math.min(rows.length - 1, at))];
    if (row === undefined) return;
    onSelect?.(row);
    const box = scroller.current!;
    const top = rows.indexOf(row) * ROW;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + ROW > box.scrollTop + box.clientHeight - AXIS) box.scrollTop = top + ROW - box.clientHeight + AXIS;
  }

  function zoomed(by: number, around = (from + to) / 2): void {
    const span = Math.min(end, Math.max(10, (to - from) * by));
    const start = Math.max(0, Math.min(end - span, around - ((around - from) * span) / (to - from)));
    setZoom(span >= end ? null : { from: start, to: start + span });
  }

  function moved(by: number): void {
    if (!zoom) return;
    const start = Math.max(0, Math.min(end - (to - from), from + by * (to - from)));
    setZoom({ from: start, to: start + to - from });
  }

  function onKeyDown(event: KeyboardEvent): void {
    const page = Math.max(1, Math.floor((size.height - AXIS) / ROW) - 1);
    const keys: Record<string, () => void> = {
      ArrowDown: () => select(place + 1),
      ArrowUp: () => select(place - 1),
      PageDown: () => select(place + page),
      PageUp: () => select(place - page),
      Home: () => select(0),
      End: () => select(rows.length - 1),
      ArrowLeft: () => moved(-0.2),
      ArrowRight: () => moved(0.2),
      "+": () => zoomed(0.6),
      "=": () => zoomed(0.6),
      "-": () => zoomed(1 / 0.6),
      "0": () => setZoom(null),
      Enter: () => place >= 0 && onOpen?.(selected),
    };
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  }

  function onWheel(event: WheelEvent): void {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const x = event.clientX - scroller.current!.getBoundingClientRect().left - labels;
    zoomed(event.deltaY > 0 ? 1.25 : 0.8, from + (x / (size.width - labels - 8)) * (to - from));
  }
  useEffect(() => {
    const box = scroller.current!;
    box.addEventListener("wheel", onWheel, { passive: false });
    return () => box.removeEventListener("wheel", onWheel);
  });

  return (
    <div class="gantt">
      <div
        class="gantt-rows"
        ref={scroller}
        tabIndex={0}
        role="application"
        aria-label={`Timeline of ${rows.length} tasks. Arrow keys choose a task, Enter opens it, plus and minus zoom, 0 shows all.`}
        style={{ height: `${height}px` }}
        onScroll={onScroll}
        onKeyDown={onKeyDown}
        onMouseMove={(event) => setHovered(rowAt(event))}
        onMouseLeave={() => setHovered(-1)}
        onClick={(event) => {
          const row = rowAt(event);
          if (row < 0) return;
          onSelect?.(row);
          if (row === selected) onOpen?.(row);
        }}
      >
        <canvas ref={canvas} class="gantt-canvas" style={{ width: `${size.width}px`, height: `${size.height}px` }} />
        <div style={{ height: `${Math.max(0, rows.length * ROW + AXIS - size.height)}px` }} />
      </div>
      <div class="gantt-foot">
        <ul class="legend" aria-label="Colours">
          {PHASES.map((phase) => (
            <li key={phase}>
              <span class={`swatch phase-${phase}`} /> {phase}
            </li>
          ))}
          <li>
            <span class="swatch phase-failed" /> failed
          </li>
          <li>no bar: cached, or never ran</li>
          {returned && <li><span class="swatch fill-returned" /> succeeded, exit not 0</li>}
        </ul>
        <div class="zoom">
          <button type="button" onClick={() => zoomed(0.6)} aria-label="Zoom in">+</button>
          <button type="button" onClick={() => zoomed(1 / 0.6)} aria-label="Zoom out">−</button>
          <button type="button" onClick={() => setZoom(null)} disabled={!zoom}>All</button>
        </div>
      </div>
      <p class="hidden" aria-live="polite">{place >= 0 ? said(table, selected, name, now) : ""}</p>
      {hovered >= 0 || place >= 0 ? (
        <p class="gantt-told">{said(table, hovered >= 0 ? hovered : selected, name, now)}</p>
      ) : (
        <p class="gantt-told muted">Choose a task to see when it waited and ran.</p>
      )}
    </div>
  );
}

/** A task's times in words. */
function said(table: TaskTable, row: number, name: (row: number) => string, now: number): string {
  if (row < 0 || row >= table.length) return "";
  const spans: Span[] = [];
  const found = table.spans(row, now, spans);
  const parts = spans.slice(0, found).reverse().map((span) => `${span.phase} ${duration(span.to - span.from)}`);
  const node = table.nodeOf(row);
  const reason = table.reasons.get(row) ?? (table.hasReturned(row) && `exit code ${table.exitCode[row]}`);
  return [`${name(row)}: ${table.stateOf(row)}`, node && `on ${node}`, reason, ...parts].filter(Boolean).join(" · ");
}
