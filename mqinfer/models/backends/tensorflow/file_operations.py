"""Refuse TensorFlow graphs that read or write files of their own: a model sees what lies in its folder, and no more."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from mqinfer.models.backends.tensorflow.graph_nodes import needing, reaching
from mqinfer.models.backends.tensorflow.own_files import INITIALISERS, RESTORING, SAVING, OwnFiles
from mqinfer.models.load_options import LoadOptions
from mqinfer.models.repository.files import inner_path
from mqinfer.protocol.errors import ModelNotLoadable

_OPERATIONS = re.compile(
    "(ReadFile|WriteFile|MatchingFiles|DumpTensor|ImmutableConst|LoadAndRemapMatrix|GenerateVocabRemapping|RecordInput"
    "|Skipgram|CalibrationStatisticsSaver|(Eager)?PyFunc(Stateless)?|CreateSummary(File|Db)Writer"
    "|FileSystemSetConfiguration|Rpc(Client|Server|Call)|RegisterDataset|DistributedSave"
    "|Debug(Identity|NanCount|NumericSummary)|(WholeFile|TextLine|FixedLengthRecord|TFRecord|LMDB)Reader"
    "|(Experimental)?(TextLine|TFRecord|FixedLengthRecord|Snapshot|SnapshotChunk|ListSnapshotChunks|MatchingFiles|Cache"
    "|Load|Save|CSV|LMDB|Sql|DataService)Dataset(Reader)?|SnapshotNestedDatasetReader|(Experimental)?DatasetToTFRecord"
    ")(V[0-9]+)?"
)
"""Operations by which a graph reads or writes files, asks other machines, or runs code that its file only names."""
_STORES = INITIALISERS | RESTORING | SAVING


def check_graph(definition: Any, path: Path, options: LoadOptions, own: Collection[tuple[str, str]] = ()) -> None:
    """Raise if a GraphDef, or a function in it, has an operation that reads or writes files.

    Args:
        definition: The GraphDef.
        path: For the message.
        options: Its parameters may allow such operations.
        own: Function, or "", and name of each node that is known to read only the model's own files.

    Raises:
        ModelNotLoadable: The message has the operation's node, and the parameter that allows it.
    """
    if _are_allowed(options):
        return
    scopes = [("", definition.node), *((each.signature.name, each.node_def) for each in definition.library.function)]
    for scope, nodes in scopes:
        for node in nodes:
            if _has_file(node) or (_is_store(node) and (scope, node.name) not in own):
                raise ModelNotLoadable(
                    f"{path}: the node {node.name!r} is {node.op}, which may read or write any file of this machine; "
                    'export the model without it or, if you trust it, set parameters = { file_operations = "true" } '
                    "in model.toml"
                )


def without_leftovers(definition: Any, outputs: Collection[str], options: LoadOptions) -> Collection[str]:
    """Take out of a GraphDef what its outputs don't need, if that is an operation with files.

    A Saver of TensorFlow 1 leaves such nodes behind, and by their shape some are outputs, but they need no input.

    Args:
        definition: The GraphDef; it is changed.
        outputs: Names of the nodes of its outputs.
        options: Its parameters may allow such operations; those that `[[output]]` tables name are kept.

    Returns:
        The outputs without those of a Saver; all of them where there are no others.
    """
    with_files = [node.name for node in definition.node if _has_file(node) or _is_store(node)]
    if _are_allowed(options) or not with_files:
        return outputs
    nodes = {node.name: node for node in definition.node}
    if not options.outputs:
        left = needing(nodes, with_files) - needing(nodes, [name for name in nodes if nodes[name].op == "Placeholder"])
        outputs = [name for name in outputs if name not in left] or outputs
    _prune(definition, reaching(nodes, outputs))
    return outputs


def _prune(definition: Any, needed: Collection[str]) -> None:
    for index in reversed(range(len(definition.node))):
        definition.node[index].attr.pop("_class", None)  # a device to share, with a node that may be gone
        if definition.node[index].name not in needed:
            del definition.node[index]


def _are_allowed(options: LoadOptions) -> bool:
    return str(options.parameters.get("file_operations", "")).lower() == "true"


def _is_store(node: Any) -> bool:
    return node.op.rpartition(">")[2] in _STORES


def _has_file(node: Any) -> bool:
    operation = node.op.rpartition(">")[2]
    if operation == "PrintV2":
        return bool(node.attr["output_stream"].s.startswith(b"file:"))
    if operation == "FixedUnigramCandidateSampler":
        return bool(node.attr["vocab_file"].s)
    return _OPERATIONS.fullmatch(operation) is not None


def check_saved_model(path: Path, options: LoadOptions) -> None:
    """Raise if a SavedModel has such an operation, or an asset outside its folder.

    It restores its variables and reads its vocabularies by such operations too, as its loader runs them.

    Raises:
        ModelNotLoadable: As `check_graph`; an asset's name leads out of the folder.
    """
    from tensorflow.python.saved_model.loader_impl import parse_saved_model

    for graph in parse_saved_model(str(path)).meta_graphs:
        assets = list(_assets(graph))
        for asset in assets:
            inner_path(path / "assets", asset.filename, "an asset")
        own = OwnFiles(graph, [asset.tensor_info.name for asset in assets])
        check_graph(graph.graph_def, path, options, own.find())


def _assets(graph: Any) -> Iterator[Any]:
    from tensorflow.core.protobuf import meta_graph_pb2

    yield from graph.asset_file_def
    for packed in graph.collection_def["saved_model_assets"].any_list.value:  # of files of before 2018
        asset = meta_graph_pb2.AssetFileDef()
        packed.Unpack(asset)
        yield asset
