// States of tasks, stages and workflows: their order, their colours, what a bar shows.

/** The groups that a bar shows, from left to right, with the states of tasks in each. */
export const GROUPS: readonly (readonly [name: string, states: readonly string[]])[] = [
  ["succeeded", ["SUCCEEDED"]],
  ["failed", ["FAILED"]],
  ["cancelled", ["CANCELLED", "SKIPPED"]],
  ["running", ["RUNNING", "RELEASING"]],
  ["starting", ["ALLOCATED", "BINDING"]],
  ["staging", ["STAGING"]],
  ["queued", ["QUEUED"]],
  ["pending", ["PENDING"]],
];

const GROUP_OF = new Map(GROUPS.flatMap(([name, states]) => states.map((state) => [state, name] as const)));
const OF_RUNS = new Map([["STARTING", "starting"], ["PAUSED", "queued"], ["CANCELLING", "cancelled"]]);

/** The group of a state of a task, a stage or a workflow: the colour it is shown in. */
export function group(state: string): string {
  return GROUP_OF.get(state) ?? OF_RUNS.get(state) ?? "pending";
}

/** Whether nothing more happens to it. */
export function ended(state: string): boolean {
  return state === "SUCCEEDED" || state === "FAILED" || state === "CANCELLED" || state === "SKIPPED";
}

/** Of more different exit codes only the number of tasks is shown. */
const MOST_CODES = 2;

/** Tasks by group, zeros left out. Those that succeeded though their exit code is not 0 are a group of their own, "returned". */
export function grouped(counts: Record<string, number>, returned: Record<string, number>): [name: string, tasks: number][] {
  const apart = Object.values(returned).reduce((sum, tasks) => sum + tasks, 0);
  return GROUPS.map(([name, states]) => [name, states.reduce((sum, state) => sum + (counts[state] ?? 0), 0)] as [string, number])
    .flatMap(([name, tasks]): [string, number][] => (name === "succeeded" ? [[name, tasks - apart], ["returned", apart]] : [[name, tasks]]))
    .filter(([, tasks]) => tasks > 0);
}

/** The exit codes beside 0 of tasks that succeeded, as `flowsched ls` shows them: "(2× exit 1)". Empty if there are none. */
export function exitCodes(returned: Record<string, number>): string {
  const codes = Object.entries(returned).map(([code, tasks]) => `${tasks}× exit ${code}`);
  if (codes.length === 0) return "";
  if (codes.length <= MOST_CODES) return `(${codes.join(", ")})`;
  return `(${Object.values(returned).reduce((sum, tasks) => sum + tasks, 0)}× exit not 0)`;
}

/** How many tasks have succeeded, of how many, as `flowsched ls` counts. */
export function progress(counts: Record<string, number>): { done: number; all: number } {
  let done = 0;
  let all = 0;
  for (const [state, tasks] of Object.entries(counts)) {
    all += tasks;
    if (state === "SUCCEEDED") done += tasks;
  }
  return { done, all };
}
