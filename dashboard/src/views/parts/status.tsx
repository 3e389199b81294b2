const TONES: Readonly<Record<string, string>> = {
  ready: "good",
  draining: "warn",
  claiming: "warn",
  failing: "warn",
  stopped: "plain",
  lost: "bad",
  crashed: "bad",
};

/** The state of a worker or client, as a dot and a word. */
export function Status({ status }: { status: string }) {
  return <span class={`status ${TONES[status] ?? "plain"}`}>{status}</span>;
}
