/** The fields of a map from a stranger, MessagePack or JSON: each is checked where it is read, others are ignored. */

import { BadEnvelope, type InvalidRequest } from "../errors.js";
import type { Parameters, Scalar } from "../types.js";
import { Float, Foreign } from "./msgpack_read.js";

const MAX_INTEGER = (1n << 63n) - 1n;
const MAX_PARAMETERS = 128;

/** A class of errors that a wrong field raises. */
export type Fault = new (message: string) => InvalidRequest;

/** A map whose fields are read by name and type. */
export class Fields {
  /**
   * @param values - What came.
   * @param path - Where it stands, such as `request: 'inputs[0]'`; for messages.
   */
  constructor(
    private readonly values: ReadonlyMap<string, unknown>,
    private readonly path: string,
  ) {}

  /** Return whether a field is there, and is not nil. */
  has(key: string): boolean {
    return (this.values.get(key) ?? null) !== null;
  }

  /** Return a string; `otherwise` where the field is absent, and an error where there is no other value. */
  text(key: string, otherwise?: string, fault: Fault = BadEnvelope): string {
    const value = this.field(key, otherwise, fault);
    if (typeof value !== "string") throw this.wrong(key, "a string", value, fault);
    return value;
  }

  /** Return a boolean. */
  flag(key: string, otherwise: boolean): boolean {
    const value = this.field(key, otherwise);
    if (typeof value !== "boolean") throw this.wrong(key, "a boolean", value);
    return value;
  }

  /** Return an integer from `least` to 2^63 - 1; one beyond 2^53 is rounded. */
  count(key: string, otherwise?: number, least = 0): number {
    return Number(this.integer(key, otherwise, BigInt(least)));
  }

  /** Return an integer of 64 bits. */
  integer(key: string, otherwise?: number, least = -MAX_INTEGER - 1n): bigint {
    return asInteger(this.field(key, otherwise), least) ?? this.refuse(key, `an integer from ${least} to 2**63 - 1`);
  }

  /** Return a finite number, an integer or not. */
  number(key: string, otherwise: number): number {
    const value = this.field(key, otherwise);
    const found = value instanceof Float ? value.value : value;
    if (typeof found !== "number" || !Number.isFinite(found)) throw this.wrong(key, "a finite number", value);
    return found;
  }

  /** Return one of a few words. */
  choice<Word extends string>(key: string, words: readonly Word[], otherwise?: Word, fault: Fault = BadEnvelope): Word {
    const value = this.text(key, otherwise, fault);
    const found = words.find((word) => word === value);
    if (found !== undefined) return found;
    throw new fault(`${this.at(key)} is ${shown(value)}; it must be one of ${words.join(", ")}`);
  }

  /** Return an array of anything; undefined where it is absent. */
  list(key: string, fault: Fault = BadEnvelope): readonly unknown[] | undefined {
    const value = this.values.get(key);
    if (value === undefined || Array.isArray(value)) return value;
    throw this.wrong(key, "an array", value, fault);
  }

  /** Return an array of maps; empty where it is absent or nil. */
  maps(key: string): readonly Fields[] {
    const values = this.has(key) ? (this.list(key) ?? []) : [];
    return values.map((value, place) => asFields(value, this.below(`${key}[${place}]`)));
  }

  /** Return a map; undefined where it is absent or nil. */
  map(key: string): Fields | undefined {
    return this.has(key) ? asFields(this.values.get(key), this.below(key)) : undefined;
  }

  /** Return a map of any keys whose values are all of one type; empty where it is absent. */
  record<T>(key: string, read: (fields: Fields, key: string) => T): Readonly<Record<string, T>> {
    const found = emptyRecord<T>();
    const fields = this.map(key);
    for (const name of fields?.values.keys() ?? []) found[name] = read(fields as Fields, name);
    return found;
  }

  /** Return the parameters that are not among the known ones; each must be a boolean, a number or a string. */
  scalars(known: ReadonlySet<string>): Parameters {
    if (this.values.size > MAX_PARAMETERS)
      throw new BadEnvelope(`${this.path}: more than ${MAX_PARAMETERS} parameters`);
    const found: Parameters = emptyRecord();
    for (const [key, value] of this.values) {
      if (!known.has(key)) found[key] = asScalar(value) ?? this.refuse(key, "a boolean, a number or a string");
    }
    return found;
  }

  private wrong(key: string, expected: string, value: unknown, fault: Fault = BadEnvelope): InvalidRequest {
    return new fault(`${this.at(key)} must be ${expected}, not ${kindOf(value)}`);
  }

  private refuse(key: string, expected: string): never {
    throw this.wrong(key, expected, this.values.get(key));
  }

  private field(key: string, otherwise: unknown, fault: Fault = BadEnvelope): unknown {
    const value = this.values.get(key);
    if (value !== undefined) return value;
    if (otherwise === undefined) throw new fault(`${this.at(key)} is missing`);
    return otherwise;
  }

  private at(key: string): string {
    return `${this.path}: ${shown(key)}`;
  }

  private below(key: string): string {
    return `${this.path}: ${key.slice(0, 80)}`;
  }
}

/** Return the fields of a value that must be a map. */
export function asFields(value: unknown, path: string): Fields {
  if (value instanceof Map) return new Fields(value, path);
  throw new BadEnvelope(`${path} must be a map, not ${kindOf(value)}`);
}

/** Return an integer of `least` to 2^63 - 1, or undefined. */
export function asInteger(value: unknown, least: bigint): bigint | undefined {
  const found = typeof value === "number" && Number.isInteger(value) ? BigInt(value) : value;
  return typeof found === "bigint" && found >= least && found <= MAX_INTEGER ? found : undefined;
}

/** Return an object without a prototype, in which a key such as `__proto__` is a key like any other. */
export function emptyRecord<T>(): Record<string, T> {
  return Object.create(null) as Record<string, T>;
}

/** Return a text from a stranger as it stands in a message: quoted, and not too long. */
export function shown(text: string): string {
  return JSON.stringify(text.slice(0, 80));
}

function asScalar(value: unknown): Scalar | undefined {
  if (value instanceof Float) return value.value;
  return ["boolean", "number", "bigint", "string"].includes(typeof value) ? (value as Scalar) : undefined;
}

function kindOf(value: unknown): string {
  if (value instanceof Foreign) return value.what;
  if (value instanceof Float) return "a float";
  if (value === null || value === undefined) return "nil";
  if (Array.isArray(value)) return "an array";
  return typeof value === "object" ? "a map" : `a ${typeof value}`;
}
