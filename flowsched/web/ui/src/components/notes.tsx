// What is shown while there is nothing to show.

export function Failure({ message }: { message: string }) {
  return message ? <p class="note bad" role="alert">{message}</p> : null;
}

export function Loading() {
  return <p class="note muted" role="status">Loading …</p>;
}
