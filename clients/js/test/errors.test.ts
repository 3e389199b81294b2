import assert from "node:assert/strict";
import { test } from "node:test";
import * as client from "../src/index.js";
import { file } from "./files.js";

/** Rows of the table of codes in docs/reference/protocol.md, section 7. */
const PROTOCOL = new TextDecoder().decode(file("docs/reference/protocol.md"));
const CODES = [...PROTOCOL.matchAll(/^\| `([a-z_]+)` \| ([A-Z]\w+) \|/gm)];

test("every code of the protocol has its class", () => {
  assert.ok(CODES.length > 20);
  for (const [, code, name] of CODES) {
    const kind = (client as unknown as Record<string, typeof client.MqinferError>)[name as string];
    assert.ok(kind, name);
    const error = client.errorFromCode(code as string, "why");
    assert.ok(error instanceof kind);
    assert.deepEqual([error.code, error.message, kind.code], [code, "why", code]);
  }
});

test("an unknown code, of a newer peer, counts as internal", () => {
  const error = client.errorFromCode("later", "why");
  assert.equal(error.constructor, client.MqinferError);
  assert.equal(error.code, "internal");
});

test("errors of a kind are caught by their class", () => {
  assert.ok(client.errorFromCode("bad_tensor", "") instanceof client.InvalidRequest);
  assert.ok(client.errorFromCode("expired", "") instanceof client.Unanswered);
  assert.ok(client.errorFromCode("name_taken", "") instanceof client.LinkError);
});
