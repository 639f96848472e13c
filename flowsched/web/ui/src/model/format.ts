// Numbers and times as people read them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** 1536 → "1.5 KiB". */
export function bytes(amount: number): string {
  let unit = 0;
  while (amount >= 1024 && unit < UNITS.length - 1) {
    amount /= 1024;
    unit++;
  }
  return `${unit === 0 || amount >= 100 ? Math.round(amount) : amount.toFixed(1)} ${UNITS[unit]}`;
}

/** 65,000 ms → "1m 5s". */
export function duration(ms: number): string {
  if (ms < 0.5) return "0s";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)}s`;
  const seconds = Math.round(ms / 1000);
  const [days, hours, minutes] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  if (days) return `${days}d ${hours}h`;
  if (hours) return `${hours}h ${minutes}m`;
  return `${minutes}m ${seconds % 60}s`;
}

/** When something comes that is expected between two moments: "starts in 3m 0s to 5m 0s; ". "" where nothing is expected. */
export function startsIn(waiting: { start_low_at: string | null; start_high_at: string | null } | null, now: number): string {
  if (!waiting?.start_low_at || !waiting.start_high_at) return "";
  const [low, high] = [waiting.start_low_at, waiting.start_high_at].map((at) => duration(Math.max(0, Date.parse(at) - now)));
  return `starts in ${low} to ${high}; `;
}

/** 12000 → "12,000". */
export function count(amount: number): string {
  return amount.toLocaleString("en-US");
}

/** 1 → "1 task", 2 → "2 tasks". */
export function counted(amount: number, noun: string): string {
  return `${count(amount)} ${noun}${amount === 1 ? "" : "s"}`;
}

/** An amount of a resource in the unit that people use: cpu 1500 → "1.5". */
export function quantity(resource: string, amount: number): string {
  if (resource === "cpu" || resource === "gpu") return String(Math.round(amount) / 1000);
  if (resource === "memory" || resource === "disk") return bytes(amount);
  if (resource === "io") return `${bytes(amount)}/s`;
  return count(amount);
}

/** "14:03:21", with the date if it is another day. */
export function moment(text: string | null): string {
  if (!text) return "—";
  const at = new Date(text);
  const time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  return at.toDateString() === new Date().toDateString() ? time : `${at.toISOString().slice(0, 10)} ${time}`;
}

/** How long ago, in words. */
export function since(text: string, now: number): string {
  const ms = now - Date.parse(text);
  return ms < 2000 ? "just now" : `${duration(ms)} ago`;
}

/** Items without what all share, as `flowsched show --tasks` has them: of JSON objects "lr=0.1 batch=32", of others the part after the words that all have. */
export function toldApart(items: readonly string[]): string[] {
  const given = items.map(objectIn);
  const first = given[0];
  if (first && given.every((each) => each !== undefined)) {
    const texts = given.map((each) => new Map(Object.entries(each!).map(([key, value]) => [key, typeof value === "string" ? value : JSON.stringify(value)])));
    const same = new Set([...texts[0]!].filter(([key, value]) => items.length > 1 && texts.every((each) => each.get(key) === value)).map(([key]) => key));
    return texts.map((each) => [...each].filter(([key]) => !same.has(key)).map(([key, value]) => `${key}=${value}`).join(" "));
  }
  const [low, high] = items.reduce(([a, b], item) => [item < a ? item : a, item > b ? item : b], [items[0] ?? "", items[0] ?? ""]);
  let shared = 0;
  while (shared < low.length && low[shared] === high[shared]) shared++;
  while (shared > 0 && /[\p{L}\p{N}_.]/u.test(low[shared - 1]!)) shared--;
  return shared > 1 ? items.map((item) => `…${item.slice(shared)}`) : [...items];
}

/** The JSON object that an item is, if it is one. */
function objectIn(item: string): object | undefined {
  if (!item.startsWith("{")) return undefined;
  try {
    return JSON.parse(item) as object;
  } catch {
    return undefined;
  }
}

/** The beginning of an id that is enough to tell it from others. Ids of engines' runs begin with the second of their start. */
export function shortId(id: string): string {
  const length = /^\d{8}_\d{6}_/.test(id) ? 20 : 12;
  return id.length > length + 1 ? id.slice(0, length) : id;
}
