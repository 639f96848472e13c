// A bar that shows how many tasks are in which state.

import { count } from "../model/format";
import { exitCodes, grouped } from "../model/states";

/** How a group is called, where its name does not say it. */
const NAMES: Record<string, string> = { returned: "succeeded with an exit code that is not 0" };

export function StateBar({ counts, returned }: { counts: Record<string, number>; returned: Record<string, number> }) {
  const parts = grouped(counts, returned);
  const all = parts.reduce((sum, [, tasks]) => sum + tasks, 0);
  const told = parts.map(([name, tasks]) => `${count(tasks)} ${NAMES[name] ?? name}`).join(", ");
  return (
    <span class="statebar" role="img" aria-label={told || "no tasks"} title={told}>
      {parts.map(([name, tasks]) => (
        <span key={name} class={`fill-${name}`} style={{ width: `${(100 * tasks) / all}%` }} />
      ))}
    </span>
  );
}

export function StateWord({ state, returned = {} }: { state: string; returned?: Record<string, number> }) {
  const codes = exitCodes(returned);
  return (
    <>
      <span class={`state state-${state.toLowerCase()}`}>{state}</span>
      {codes && <> <span class="exits">{codes}</span></>}
    </>
  );
}
