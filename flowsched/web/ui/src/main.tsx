// The page: its frame, the form for a token, and which view is shown.

import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { keepToken, token } from "./api";
import { onNeedsToken } from "./live";
import { href, useRoute } from "./router";
import "./style.css";
import { ClusterView } from "./views/cluster";
import { QueuesView } from "./views/queues";
import { RunView } from "./views/run";
import { RunsView } from "./views/runs";

const VIEWS = [
  ["runs", "Runs"],
  ["queues", "Queues"],
  ["cluster", "Cluster"],
] as const;

function App() {
  const route = useRoute();
  const [needed, setNeeded] = useState(false);
  const [session, setSession] = useState(0);
  onNeedsToken.current = () => setNeeded(true);
  const here = route[0] ?? "runs";
  useEffect(() => {
    document.title = ["flowsched", ...route.filter((_, at) => at !== 0 || route.length === 1)].join(" · ");
  }, [route.join("/")]);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>
        Skip to the content
      </a>
      <header class="top">
        <a class="brand" href={href("runs")}>flowsched</a>
        <nav aria-label="Views">
          {VIEWS.map(([name, label]) => (
            <a key={name} href={href(name)} aria-current={here === name ? "page" : undefined}>{label}</a>
          ))}
        </nav>
        <span class="end">
          {token() !== null && (
            <button type="button" class="plain" onClick={() => { keepToken(null); setSession(session + 1); }}>Forget token</button>
          )}
          <a href="/docs">API</a>
        </span>
      </header>
      <main id="main" tabIndex={-1}>
        {needed ? (
          <TokenForm onGiven={() => { setNeeded(false); setSession(session + 1); }} />
        ) : (
          <View key={session} route={route} />
        )}
      </main>
    </>
  );
}

/** A token in the address (`/ui#token=…`, or `/ui#token=…/runs/ID`) is kept, and leaves the address, so that nobody copies it along. */
function takeToken(): void {
  const [, given, place] = /^#token=([^/]+)(\/.*)?$/.exec(location.hash) ?? [];
  if (given === undefined) return;
  keepToken(decodeURIComponent(given));
  history.replaceState(null, "", location.pathname + (place === undefined ? "" : `#${place}`));
}

function View({ route }: { route: string[] }) {
  const [view = "runs", id, part, stage, index] = route;
  if (view === "runs" && id === undefined) return <RunsView />;
  if (view === "runs" && id !== undefined) {
    const task = part === "tasks" && stage !== undefined ? { stage, index: Number(index ?? 0) } : undefined;
    return <RunView key={id} id={id} task={task} />;
  }
  if (view === "queues") return <QueuesView />;
  if (view === "cluster") return <ClusterView />;
  return <p class="note">There is no view {view}. <a href={href("runs")}>All runs</a></p>;
}

function TokenForm({ onGiven }: { onGiven: () => void }) {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  return (
    <form
      class="card token"
      onSubmit={(event) => {
        event.preventDefault();
        keepToken(field.current!.value.trim());
        onGiven();
      }}
    >
      <h1>A token is needed</h1>
      {token() === null ? (
        <p>The service answers only those who have its token.</p>
      ) : (
        <p role="alert">The service refused this token: it is not its own. Perhaps it was cut when it was copied, or it is that of another service.</p>
      )}
      <label for="token">Token</label>
      <input id="token" ref={field} type="password" autocomplete="off" required />
      <p class="muted">
        On the machine of the service <code>flowsched token</code> prints it; elsewhere ask its operator. The page keeps it until this tab is closed.
      </p>
      <button type="submit">Use it</button>
    </form>
  );
}

takeToken();
render(<App />, document.getElementById("app")!);
