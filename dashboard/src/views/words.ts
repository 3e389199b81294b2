/** The five views, in the order of their tabs and of the keys 1 to 5. */
export const VIEWS = ["live", "streams", "workers", "models", "log"] as const;
export type ViewName = (typeof VIEWS)[number];

/** Return whether each word of the filter occurs in one of the texts. */
export function matches(filter: string, ...texts: readonly string[]): boolean {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return true;
  const all = texts.join("\n").toLowerCase();
  return words.every((word) => all.includes(word));
}

/** Return what the selection calls a stream: the client and the source, whatever the model. */
export function streamName(stream: { readonly client: string; readonly source: string }): string {
  return `${stream.client}/${stream.source}`;
}
