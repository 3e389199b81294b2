/** A piece of JSON text and what it is, for its colour. */
export interface Token {
  readonly kind: "key" | "string" | "number" | "word" | "mark";
  readonly text: string;
}

const MOST_TOKENS = 4000;
const MOST_DEPTH = 12;
const LONGEST_STRING = 2000;

/**
 * Return a value as indented JSON, in pieces.
 *
 * What strangers sent may be deep, long or strange: so many pieces are made and no more, deep parts are left out, and
 * what JSON does not know (big integers, NaN, functions) is written as text.
 */
export function jsonTokens(value: unknown): Token[] {
  const tokens: Token[] = [];
  write(tokens, value, 0);
  if (tokens.length >= MOST_TOKENS) tokens.push({ kind: "mark", text: "\n… cut off here" });
  return tokens;
}

function write(tokens: Token[], value: unknown, depth: number): void {
  if (tokens.length >= MOST_TOKENS) return;
  if (typeof value === "string") {
    const text = value.length > LONGEST_STRING ? `${value.slice(0, LONGEST_STRING)}…` : value;
    tokens.push({ kind: "string", text: JSON.stringify(text) });
  } else if (typeof value === "number" || typeof value === "bigint") {
    tokens.push({ kind: "number", text: String(value) });
  } else if (typeof value === "object" && value !== null) {
    writeMembers(tokens, value, depth);
  } else {
    tokens.push({ kind: "word", text: String(value ?? null) });
  }
}

function writeMembers(tokens: Token[], value: object, depth: number): void {
  const isArray = Array.isArray(value) || ArrayBuffer.isView(value);
  const [open, close] = isArray ? "[]" : "{}";
  const names = Object.keys(value).slice(0, MOST_TOKENS);
  if (!names.length || depth >= MOST_DEPTH) {
    tokens.push({ kind: "mark", text: names.length ? `${open}…${close}` : `${open}${close}` });
    return;
  }
  const inner = "  ".repeat(depth + 1);
  let before = `${open}\n${inner}`;
  for (const name of names) {
    if (tokens.length >= MOST_TOKENS) return;
    tokens.push({ kind: "mark", text: before });
    if (!isArray) tokens.push({ kind: "key", text: JSON.stringify(name) }, { kind: "mark", text: ": " });
    write(tokens, (value as Record<string, unknown>)[name], depth + 1);
    before = `,\n${inner}`;
  }
  tokens.push({ kind: "mark", text: `\n${"  ".repeat(depth)}${close}` });
}
