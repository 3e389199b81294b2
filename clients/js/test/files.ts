/** The golden files of the repository, for tests in node. */

import { existsSync, readFileSync } from "node:fs";
import type { BrokenEntry, GoldenEntry } from "./neutral.js";

const ROOT = rootAbove(new URL("./", import.meta.url));

/** Return a file of the repository. */
export function file(path: string): Uint8Array {
  return new Uint8Array(readFileSync(new URL(path, ROOT)));
}

/** Return a golden file. */
export function golden(name: string): Uint8Array {
  return file(`tests/golden/${name}`);
}

/** Return the entries of golden.json that describe messages of this package's content type. */
export function goldenEntries(): readonly GoldenEntry[] {
  const entries: GoldenEntry[] = JSON.parse(new TextDecoder().decode(golden("golden.json")));
  return entries.filter((entry) => entry.content_type === "application/vnd.mqinfer.v1");
}

/** Return the entries of broken.json. */
export function brokenEntries(): readonly BrokenEntry[] {
  return JSON.parse(new TextDecoder().decode(golden("broken.json")));
}

/** Return the root of the repository: tests may have been compiled into any folder of it. */
function rootAbove(folder: URL): URL {
  if (existsSync(new URL("tests/golden/golden.json", folder))) return folder;
  const parent = new URL("../", folder);
  if (parent.href === folder.href) throw new Error("tests/golden is not there: run the tests in the repository");
  return rootAbove(parent);
}
