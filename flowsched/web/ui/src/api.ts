// Requests to the service this page came from, with the token if one was given. Event streams are read by fetch: an EventSource
// cannot send headers.

import type { FlowEvent, Problem, Timeline } from "./model/views";

const KEY = "flowsched.token";
const PREFIX = "/api/v1";

/** The service refuses: no token, or a wrong one. */
export class NeedsToken extends Error {}

/** The service answered with a problem. */
export class Refused extends Error {
  constructor(readonly status: number, message: string) {
    super(message);
  }
}

export function token(): string | null {
  return sessionStorage.getItem(KEY);
}

export function keepToken(given: string | null): void {
  if (given === null) sessionStorage.removeItem(KEY);
  else sessionStorage.setItem(KEY, given);
}

async function ask(path: string, options: RequestInit = {}): Promise<Response> {
  const headers = new Headers(options.headers);
  const known = token();
  if (known !== null) headers.set("Authorization", `Bearer ${encoded(known)}`);
  let answer: Response;
  try {
    answer = await fetch(PREFIX + path, { ...options, headers });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Refused(0, "The service does not answer. It may be restarting; the page tries again by itself.");
  }
  if (answer.ok) return answer;
  const problem = (await answer.json().catch(() => ({}))) as Partial<Problem>;
  if (answer.status === 401) throw new NeedsToken();
  throw new Refused(answer.status, problem.detail || problem.title || `HTTP ${answer.status}`);
}

/** Headers hold bytes: a token with other letters than Latin-1 goes as UTF-8. */
function encoded(text: string): string {
  return Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join("");
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await ask(path, signal ? { signal } : {})).json() as Promise<T>;
}

export async function post<T>(path: string): Promise<T> {
  return (await ask(path, { method: "POST" })).json() as Promise<T>;
}

export interface LogPart {
  text: string;
  next: number;
  more: boolean;
}

/** A part of a task's log. */
export async function log(path: string, signal: AbortSignal): Promise<LogPart> {
  const answer = await ask(path, { signal });
  return {
    text: await answer.text(),
    next: Number(answer.headers.get("Flowsched-Next-Offset") ?? 0),
    more: answer.headers.get("Flowsched-More") === "true",
  };
}

const PAGE = 20_000;
/** More tasks than this are not drawn: their rows would be 1,000,000 pixels high. */
export const MOST_TASKS = 50_000;

/** All tasks of a run, at most `MOST_TASKS`. */
export async function timelines(workflow: string, signal: AbortSignal): Promise<Timeline[]> {
  const pages: Timeline[] = [];
  let next: string | null = null;
  let tasks = 0;
  do {
    const more: string = next ? `&page_token=${encodeURIComponent(next)}` : "";
    const page: Timeline = await get(`/workflows/${encodeURIComponent(workflow)}/timeline?limit=${PAGE}${more}`, signal);
    pages.push(page);
    tasks += page.stage.length;
    next = page.next_page_token;
  } while (next && tasks < MOST_TASKS);
  return pages;
}

/**
 * Follow events from now on until `signal` says stop. A stream that breaks is opened again after the last event that came.
 *
 * `onState` is told whether the stream is open.
 */
export async function follow(
  path: string,
  signal: AbortSignal,
  onEvents: (events: FlowEvent[]) => void,
  onState: (open: boolean, problem?: unknown) => void,
): Promise<void> {
  let last = "";
  let wait = 500;
  while (!signal.aborted) {
    try {
      const headers: Record<string, string> = { Accept: "text/event-stream" };
      if (last) headers["Last-Event-ID"] = last;
      const answer = await ask(`${path}?after=now`, { headers, signal });
      onState(true);
      wait = 500;
      for await (const part of frames(answer.body!)) {
        const events = part.flatMap(({ id, name, data }) => {
          if (id) last = id;
          return name === "" ? [JSON.parse(data) as FlowEvent] : [];
        });
        if (events.length) onEvents(events);
        if (part.some(({ name }) => name === "end")) {
          onEvents([]);
          return;
        }
      }
      onState(false);
    } catch (error) {
      if (signal.aborted) return;
      onState(false, error);
      if (error instanceof NeedsToken || (error instanceof Refused && error.status === 404)) return;
    }
    await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(10_000, wait * 2);
  }
}

interface Frame {
  id: string;
  name: string;
  data: string;
}

/** The frames of a stream of Server-Sent Events, as many at a time as have come. */
async function* frames(body: ReadableStream<Uint8Array>): AsyncGenerator<Frame[]> {
  const reader = body.pipeThrough(new TextDecoderStream() as unknown as TransformStream<Uint8Array, string>).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const texts = (rest + value).split("\n\n");
    rest = texts.pop()!;
    const found = texts.map(frame).filter((each) => each.data);
    if (found.length) yield found;
  }
}

function frame(text: string): Frame {
  const found: Frame = { id: "", name: "", data: "" };
  for (const line of text.split("\n")) {
    if (line.startsWith("id: ")) found.id = line.slice(4);
    else if (line.startsWith("event: ")) found.name = line.slice(7);
    else if (line.startsWith("data: ")) found.data += line.slice(6);
  }
  return found;
}
