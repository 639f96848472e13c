// Hooks that keep a view of the service up to date: ask, then ask again when events say that something happened.

import { useEffect, useRef, useState } from "preact/hooks";
import { follow, NeedsToken, Refused } from "./api";
import type { FlowEvent } from "./model/views";

export interface Live<T> {
  value: T | undefined;
  error: string;
  /** Whether events arrive. */
  open: boolean;
}

/** Told when the service asks for a token. */
export const onNeedsToken: { current: () => void } = { current: () => {} };

/** What to say of an error; a missing token opens the form for one. */
export function saidOf(error: unknown): string {
  if (error instanceof NeedsToken) {
    onNeedsToken.current();
    return "";
  }
  return error instanceof Error ? error.message : String(error);
}

/** Asking again waits so long after an answer: as long as it took, times `EASE`, within these bounds (ms). */
const SOONEST = 400;
const LATEST = 5_000;
const EASE = 8;

/**
 * Ask `load` at once, after events of `stream`, and every `every` ms; never twice at a time.
 *
 * `onEvents` sees events as they come, and says whether they need another `load`.
 */
export function useLive<T>(
  key: string,
  load: (signal: AbortSignal) => Promise<T>,
  options: { stream?: string; every?: number; onEvents?: (events: FlowEvent[]) => boolean } = {},
): Live<T> {
  const [live, setLive] = useState<Live<T>>({ value: undefined, error: "", open: false });
  const handlers = useRef({ load, onEvents: options.onEvents });
  handlers.current = { load, onEvents: options.onEvents };
  const { stream, every } = options;

  useEffect(() => {
    const stop = new AbortController();
    let running = false;
    let again = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let slow: ReturnType<typeof setTimeout> | undefined;
    let ease = SOONEST;
    let answeredAt = 0;

    const run = async () => {
      if (running) {
        again = true;
        return;
      }
      running = true;
      const began = performance.now();
      try {
        const value = await handlers.current.load(stop.signal);
        if (stop.signal.aborted) return;
        setLive((before) => ({ ...before, value, error: "" }));
      } catch (error) {
        if (stop.signal.aborted) return;
        const said = saidOf(error);
        setLive((before) => ({ ...before, error: said }));
        if (error instanceof Refused && error.status !== 404) again = true;
      } finally {
        running = false;
        answeredAt = performance.now();
        ease = Math.min(LATEST, Math.max(SOONEST, (answeredAt - began) * EASE));
      }
      if (again) {
        again = false;
        soon();
      } else if (every) {
        clearTimeout(slow);
        slow = setTimeout(run, every);
      }
    };
    const soon = () => {
      if (timer !== undefined) return;
      timer = setTimeout(() => {
        timer = undefined;
        void run();
      }, Math.max(0, answeredAt + ease - performance.now()));
    };

    setLive({ value: undefined, error: "", open: false });
    void run();
    if (stream) {
      void follow(
        stream,
        stop.signal,
        (events) => {
          if (handlers.current.onEvents?.(events) ?? true) soon();
        },
        (open, problem) => {
          if (problem) saidOf(problem);
          setLive((before) => ({ ...before, open }));
          if (open && answeredAt) soon(); // what happened while the stream was not open
        },
      );
    }
    return () => {
      stop.abort();
      clearTimeout(timer);
      clearTimeout(slow);
    };
  }, [key, stream, every]);
  return live;
}

/** The time, again every `ms`; stands still while `ms` is 0. */
export function useNow(ms: number): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (!ms) return;
    const timer = setInterval(() => setNow(Date.now()), ms);
    return () => clearInterval(timer);
  }, [ms]);
  return now;
}
