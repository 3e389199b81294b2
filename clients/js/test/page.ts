/** The golden and broken messages in a browser: imported by the page that tests/clients/test_js_golden.py serves. */

import {
  checksum,
  decodePicture,
  decodeReply,
  decodeRequest,
  decodeTensor,
  type EncodedTensor,
  encodeReply,
  encodeRequest,
} from "../src/index.js";
import {
  type BrokenEntry,
  bothValues,
  codeOf,
  type GoldenEntry,
  PICTURES,
  payloadOf,
  replyFields,
  requestFields,
  tensorFields,
} from "./neutral.js";

/** A decoded picture: its pixels as RGBA, in base64. */
interface Picture {
  readonly name: string;
  readonly width: number;
  readonly height: number;
  readonly pixels: string;
}

/** Return what differs from golden.json, a sentence for each; empty if all is well. */
export async function differences(): Promise<string[]> {
  const entries: GoldenEntry[] = await (await fetch("/golden/golden.json")).json();
  const found: string[] = [];
  for (const entry of entries.filter(({ file }) => file.endsWith(".mqi"))) {
    const payload = await load(`/golden/${entry.file}`);
    for await (const [what, left, right] of comparisons(entry, payload)) {
      if (sorted(left) !== sorted(right)) found.push(`${entry.file}: ${what}: ${sorted(left)} is not ${sorted(right)}`);
    }
  }
  return found;
}

/** Return the code that each broken message gives, by its name. */
export async function codes(): Promise<Record<string, string>> {
  const entries: BrokenEntry[] = await (await fetch("/golden/broken.json")).json();
  const found: Record<string, string> = {};
  for (const entry of entries) {
    const base = entry.base === undefined ? new Uint8Array(0) : await load(`/golden/${entry.base}`);
    found[entry.name] = await codeOf(entry.kind, payloadOf(entry, base));
  }
  return found;
}

/** Return the pictures of a request as they are drawn. */
export async function pictures(address: string): Promise<Picture[]> {
  const { inputs } = decodeRequest(await load(address));
  return Promise.all(inputs.map(drawn));
}

async function load(address: string): Promise<Uint8Array> {
  return new Uint8Array(await (await fetch(address)).arrayBuffer());
}

async function* comparisons(entry: GoldenEntry, payload: Uint8Array): AsyncGenerator<[string, unknown, unknown]> {
  const isRequest = entry.kind === "request";
  const request = isRequest ? decodeRequest(payload) : undefined;
  const reply = isRequest ? undefined : decodeReply(payload);
  const tensors = request?.inputs ?? reply?.outputs ?? [];
  yield ["checksum", checksum(payload), entry.xxh3];
  yield ["fields", request ? requestFields(request) : reply && replyFields(reply), entry.fields];
  yield ["tensors", tensors.map(tensorFields), entry.tensors?.map(tensorFields)];
  yield ["written again", [...(request ? encodeRequest(request) : encodeReply(reply ?? never()))], [...payload]];
  for (const [place, tensor] of tensors.entries()) {
    const wanted = entry.tensors?.[place];
    if (wanted === undefined || PICTURES.includes(tensor.encoding)) continue;
    yield [`values of ${tensor.name}`, ...(await bothValues(wanted, decodeTensor(tensor)))];
  }
}

async function drawn(tensor: EncodedTensor): Promise<Picture> {
  const bitmap = await decodePicture(tensor);
  const { width, height } = bitmap;
  const context = new OffscreenCanvas(width, height).getContext("2d") ?? never();
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  const { data } = context.getImageData(0, 0, width, height);
  const pixels = btoa(Array.from(data, (byte) => String.fromCharCode(byte)).join(""));
  return { name: tensor.name, width, height, pixels };
}

/** Return JSON whose keys are in order, to compare by. */
function sorted(value: unknown): string {
  return JSON.stringify(value, (_key, each: unknown) =>
    typeof each === "object" && each !== null && !Array.isArray(each)
      ? Object.fromEntries(Object.entries(each).sort(([left], [right]) => (left < right ? -1 : 1)))
      : each,
  );
}

function never(): never {
  throw new Error("can't be");
}
