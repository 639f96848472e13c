// The critical path: the chain of stages that the end of the run waited for, or waits for now.

import type { Stage } from "./views";

/**
 * From the stage that ended last (of a run that goes on: the stage that most stages still wait behind), back over the stage that
 * each one waited for longest. A stage that ended without having begun (skipped, cancelled) is on none: no end waited for it.
 * Returns the names, the first stage first.
 */
export function criticalPath(all: readonly Stage[]): string[] {
  const stages = all.filter((stage) => stage.started_at !== null || stage.ended_at === null || stage.state === "SUCCEEDED");
  const byName = new Map(stages.map((stage) => [stage.name, stage]));
  const depths = new Map<string, number>();
  for (const stage of inOrder(stages, byName)) {
    depths.set(stage.name, 1 + Math.max(0, ...stage.needs.map((name) => depths.get(name) ?? 0)));
  }
  const later = (a: Stage, b: Stage): Stage => {
    const [endA, endB] = [endOf(a), endOf(b)];
    if (endA !== endB) return endA > endB ? a : b;
    return (depths.get(b.name) ?? 0) > (depths.get(a.name) ?? 0) ? b : a;
  };
  const path: string[] = [];
  let at = stages.length ? stages.reduce(later) : undefined;
  while (at && !path.includes(at.name)) {
    path.push(at.name);
    const parents: Stage[] = at.needs.flatMap((name) => byName.get(name) ?? []);
    at = parents.length ? parents.reduce(later) : undefined;
  }
  return path.reverse();
}

function endOf(stage: Stage): number {
  return stage.ended_at ? Date.parse(stage.ended_at) : Number.POSITIVE_INFINITY;
}

/** Every stage after those it needs. A name that is not there is passed over. */
function inOrder(stages: readonly Stage[], byName: ReadonlyMap<string, Stage>): Stage[] {
  const found: Stage[] = [];
  const seen = new Set<string>();
  const stack: [Stage, boolean][] = [...stages].reverse().map((stage) => [stage, false]);
  while (stack.length) {
    const [stage, ready] = stack.pop()!;
    if (ready) {
      found.push(stage);
    } else if (!seen.has(stage.name)) {
      seen.add(stage.name);
      stack.push([stage, true]);
      for (const name of stage.needs) {
        const parent = byName.get(name);
        if (parent && !seen.has(name)) stack.push([parent, false]);
      }
    }
  }
  return found;
}
