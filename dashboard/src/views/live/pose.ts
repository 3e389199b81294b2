import type { Box, ClassInfo } from "../../site/types.js";

/** Points of a lower score are not drawn: of those that are out of sight models return guesses. */
const LEAST_DRAWN = 0.3;
/** As in mqinfer/answers/keypoints.py. */
const SIDES = ["eye", "ear", "shoulder", "elbow", "wrist", "hip", "knee", "ankle"];
const COCO_NAMES = ["nose", ...SIDES.flatMap((part) => [`left_${part}`, `right_${part}`])];
const LIMBS = [
  ["eye", "ear", "shoulder", "elbow", "wrist"],
  ["shoulder", "hip", "knee", "ankle"],
];
const COCO_SKELETON: readonly (readonly [string, string])[] = [
  ...["eye", "shoulder", "hip"].map((part) => [`left_${part}`, `right_${part}`] as const),
  ...["left", "right"].flatMap((side) => [
    ["nose", `${side}_eye`] as const,
    ...LIMBS.flatMap((limb) =>
      limb.slice(1).map((part, place) => [`${side}_${limb[place]}`, `${side}_${part}`] as const),
    ),
  ]),
];

type Place = readonly [number, number];

/** The key points of an object that are in sight, and the lines between them, on the screen. */
export interface Pose {
  readonly points: readonly Place[];
  readonly lines: readonly (readonly [Place, Place])[];
}

/** Return what is drawn of an object's key points: named by its class, else by COCO's person where there are 17. */
export function shownPose(box: Box, classes: readonly ClassInfo[], [scaleX, scaleY]: Place): Pose {
  const { keypoints = [], classIndex } = box;
  const own = classes[classIndex];
  const isCoco = !own?.keypoints && keypoints.length === COCO_NAMES.length;
  const names = isCoco ? COCO_NAMES : (own?.keypoints ?? []);
  const skeleton = isCoco ? COCO_SKELETON : (own?.skeleton ?? []);
  const shown = new Map<string, Place>();
  for (const [number, [x, y, score]] of keypoints.entries()) {
    if (score >= LEAST_DRAWN) shown.set(names[number] ?? String(number), [x * scaleX, y * scaleY]);
  }
  const lines = skeleton.flatMap(([one, other]) => {
    const [from, to] = [shown.get(one), shown.get(other)];
    return from && to ? [[from, to] as const] : [];
  });
  return { points: [...shown.values()], lines };
}
