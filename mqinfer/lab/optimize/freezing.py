"""Freeze a SavedModel's signature: `python -m mqinfer.lab.optimize.freezing FOLDER SIGNATURE OUTPUT`, in a new process.

It loads the model as TensorFlow 1 does, which also takes models that TensorFlow 2's loader refuses, writes the graph
with its variables as constants and its functions inlined to OUTPUT, and prints
`{"inputs": {name: tensor}, "outputs": {name: tensor}}`, since a signature's names differ from those of its tensors.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mqinfer.models.backends.tensorflow.runtime import import_tensorflow
from mqinfer.models.backends.tensorflow.saved_model import choose_signature, serving_tags, tensor_names


def freeze(folder: Path, signature: str) -> tuple[Any, dict[str, str], dict[str, str]]:
    """Return a signature as a graph of constants, and the tensors of its inputs and of its outputs by name.

    Args:
        folder: Of the SavedModel.
        signature: Its name; empty for the one that the back end takes.

    Raises:
        Exception: Of any class, where TensorFlow can't load or freeze it.
    """
    tensorflow = import_tensorflow()
    v1 = tensorflow.compat.v1
    from tensorflow.python.framework import convert_to_constants

    with v1.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        loaded = v1.saved_model.load(session, serving_tags(folder), str(folder))
        given = {n: each for n, each in loaded.signature_def.items() if not n.startswith("__")}
        types = {name: [info.dtype for info in each.inputs.values()] for name, each in given.items()}
        definition = given[choose_signature(types, signature or None, folder)]
        inputs, outputs = tensor_names(definition.inputs), tensor_names(definition.outputs)
        nodes = [tensor.partition(":")[0] for tensor in outputs.values()]
        frozen = convert_to_constants.convert_variables_to_constants_from_session_graph(
            session, graph.as_graph_def(), nodes
        )
    wrapped = v1.wrap_function(lambda: tensorflow.graph_util.import_graph_def(frozen, name=""), [])
    tensors = wrapped.graph.get_tensor_by_name
    pruned = wrapped.prune([*map(tensors, inputs.values())], [*map(tensors, outputs.values())])
    inlined = convert_to_constants.convert_variables_to_constants_v2(pruned)
    return (
        inlined.graph.as_graph_def(),
        dict(zip(inputs, [tensor.name for tensor in inlined.inputs], strict=True)),
        dict(zip(outputs, [tensor.name for tensor in inlined.outputs], strict=True)),
    )


def main() -> None:
    """Freeze what the command line names."""
    folder, signature, output = sys.argv[1:]
    frozen, inputs, outputs = freeze(Path(folder), signature)
    Path(output).write_bytes(frozen.SerializeToString())
    sys.stdout.write(json.dumps({"inputs": inputs, "outputs": outputs}))


if __name__ == "__main__":
    main()
