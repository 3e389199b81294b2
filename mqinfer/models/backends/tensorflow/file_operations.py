"""Refuse TensorFlow graphs that read or write files of their own: a model sees what lies in its folder, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mqinfer.models.load_options import LoadOptions
from mqinfer.models.repository.files import inner_path
from mqinfer.protocol.errors import ModelNotLoadable

_READERS = ("WholeFileReader", "TextLineReader", "FixedLengthRecordReader", "TFRecordReader", "LMDBReader")
_DATASETS = ("TextLine", "TFRecord", "FixedLengthRecord", "Snapshot", "Cache", "Load", "Save", "Csv", "LMDB", "Sql")
_OPERATIONS = frozenset(
    {
        "ReadFile",
        "WriteFile",
        "MatchingFiles",
        "ImmutableConst",
        "LoadAndRemapMatrix",
        "GenerateVocabRemapping",
        "PyFunc",
        "PyFuncStateless",
        "EagerPyFunc",
        "CreateSummaryFileWriter",
        "CreateSummaryDbWriter",
        "DebugIdentity",
        *(f"{name}{version}" for name in _READERS for version in ("", "V2")),
        *(f"{name}Dataset{version}" for name in _DATASETS for version in ("", "V2", "V3")),
    }
)
"""Operations by which a graph reads or writes files, or runs code, that its file only names; those by which TensorFlow
stores and restores a SavedModel's own variables and tables are in most of them and are not among these."""


def check_graph(definition: Any, path: Path, options: LoadOptions) -> None:
    """Raise if a GraphDef, or a function in it, has an operation that reads or writes files.

    Raises:
        ModelNotLoadable: The message has the operation's node, and the parameter that allows it.
    """
    if str(options.parameters.get("file_operations", "")).lower() == "true":
        return
    for nodes in (definition.node, *(function.node_def for function in definition.library.function)):
        for node in nodes:
            if node.op.rpartition(">")[2] in _OPERATIONS or _prints_to_file(node):
                raise ModelNotLoadable(
                    f"{path}: the node {node.name!r} is {node.op}, which may read or write any file of this machine; "
                    'export the model without it or, if you trust it, set parameters = { file_operations = "true" } '
                    "in model.toml"
                )


def _prints_to_file(node: Any) -> bool:
    return node.op == "PrintV2" and bool(node.attr["output_stream"].s.startswith(b"file:"))


def check_saved_model(path: Path, options: LoadOptions) -> None:
    """Raise if a SavedModel has such an operation, or an asset outside its folder.

    Raises:
        ModelNotLoadable: As `check_graph`; an asset's name leads out of the folder.
    """
    from tensorflow.python.saved_model.loader_impl import parse_saved_model

    for graph in parse_saved_model(str(path)).meta_graphs:
        for asset in graph.asset_file_def:
            inner_path(path / "assets", asset.filename, "an asset")
        check_graph(graph.graph_def, path, options)
