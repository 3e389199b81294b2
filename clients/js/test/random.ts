/** Numbers that look random and are the same in every run. */

/** Return a generator of numbers from 0 to 65535. */
export function generator(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    return state >>> 16;
  };
}
