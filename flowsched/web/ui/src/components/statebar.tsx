// A bar that shows how many tasks are in which state.

import { count } from "../model/format";
import { grouped } from "../model/states";

export function StateBar({ counts }: { counts: Record<string, number> }) {
  const parts = grouped(counts);
  const all = parts.reduce((sum, [, tasks]) => sum + tasks, 0);
  const told = parts.map(([name, tasks]) => `${count(tasks)} ${name}`).join(", ");
  return (
    <span class="statebar" role="img" aria-label={told || "no tasks"} title={told}>
      {parts.map(([name, tasks]) => (
        <span key={name} class={`fill-${name}`} style={{ width: `${(100 * tasks) / all}%` }} />
      ))}
    </span>
  );
}

export function StateWord({ state }: { state: string }) {
  return <span class={`state state-${state.toLowerCase()}`}>{state}</span>;
}
