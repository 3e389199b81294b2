"""SavedModels like TensorFlow Serving's test models: half of the input plus two, with signatures for examples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["SIGNATURES", "save_half_plus_two"]

SIGNATURES = ["serving_default", "add", "classify_x_to_y", "label", "predict_images", "regress_x_to_y"]


def save_half_plus_two(tf: Any, save_tf1: Callable[..., Path], folder: Path, plus: float = 2.0) -> Path:
    """Write a SavedModel and return its folder; its signatures are `SIGNATURES`.

    `serving_default` takes `x` [-1, 1], half of which plus `plus` is `y`; `regress_x_to_y` and `classify_x_to_y` take
    it from the feature `x` of examples; `label` has labels too, `low` and `high`, and two classes; `add` adds `a` and
    `b` without axes, so it has no batch axis; `predict_images` takes `images` of any rank, as that of TensorFlow
    Serving's tutorial does. `label_bytes` of `serving_default` is what `x` is called.
    """

    def build(v1: Any) -> tuple[dict[str, Any], Any]:
        half, offset = v1.Variable(0.5, name="a"), v1.Variable(plus, name="b")
        example = v1.placeholder(tf.string, name="tf_example")
        images = tf.identity(v1.parse_example(example, {"x": v1.FixedLenFeature([1], tf.float32)})["x"], "images")
        parsed = tf.reshape(images, [-1, 1])
        x = v1.placeholder(tf.float32, [None, 1], "x")
        y = tf.add(half * x, offset, "y")
        name_of = v1.as_string(x, name="label")
        scores = tf.add(half * parsed, offset, "scores")
        pairs = tf.concat([-scores, scores], 1)
        labels = tf.tile(tf.constant([["low", "high"]]), [tf.shape(pairs)[0], 1])
        one, other = (v1.placeholder(tf.int32, [], name) for name in "ab")

        def define(method: str, inputs: dict[str, Any], outputs: dict[str, Any]) -> Any:
            info = v1.saved_model.build_tensor_info
            return v1.saved_model.build_signature_def(
                {name: info(each) for name, each in inputs.items()},
                {name: info(each) for name, each in outputs.items()},
                f"tensorflow/serving/{method}",
            )

        return {
            "serving_default": define("predict", {"x": x}, {"y": y, "label_bytes": name_of}),
            "regress_x_to_y": define("regress", {"inputs": example}, {"outputs": scores}),
            "classify_x_to_y": define("classify", {"inputs": example}, {"scores": scores}),
            "label": define("classify", {"inputs": example}, {"scores": pairs, "classes": labels}),
            "predict_images": define("predict", {"images": images}, {"scores": tf.add(half * images, offset)}),
            "add": define("predict", {"a": one, "b": other}, {"sum": one + other}),
        }, None

    return save_tf1(folder, build)
