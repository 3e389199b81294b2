/** Print what is found among the outputs of a file of cases, each placed in its picture. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { type ClassInfo, type Datatype, decodeTensor, type ImageContract, type Result } from "../../src/index.js";
import { placeInModel } from "../../src/pictures/placement.js";
import { pictureResult } from "../../src/pictures/result.js";
import { described } from "./described.js";

interface Case {
  readonly contract: ImageContract;
  readonly size: readonly [number, number];
  readonly outputs: readonly { name: string; datatype: Datatype; shape: number[]; bytes: string }[];
  readonly classes: readonly ClassInfo[];
}

const cases: Case[] = JSON.parse(readFileSync(process.argv[2] ?? "", "utf8"));
const found = cases.map(({ contract, size, outputs, classes }) => {
  const tensors = outputs.map((each) =>
    decodeTensor({ ...each, encoding: "raw", parameters: {}, bytes: Buffer.from(each.bytes, "base64") }),
  );
  const result = { outputs: Object.fromEntries(tensors.map((each) => [each.name, each])) } as unknown as Result;
  const answer = pictureResult(result, placeInModel(contract, ...size), classes);
  for (const key of ["detections", "mask", "top"] as const) assert.equal(answer[key], answer[key]); // worked out once
  return described(answer);
});
console.log(JSON.stringify(found));
