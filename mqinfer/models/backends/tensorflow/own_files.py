"""Find a SavedModel's operations that read its own files: they restore its variables, and fill tables from its assets.

The loader feeds the paths: that of the variables to the saver's tensor, and those of the assets to theirs. So an
operation is known by where its path comes from, and by what runs it: what a request runs is not fed by the loader.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from mqinfer.models.backends.tensorflow.graph_nodes import reaching

INITIALISERS = frozenset({"InitializeTableFromTextFile", "InitializeTableFromTextFileV2", "InitializeTRTResource"})
RESTORING = frozenset({"Restore", "RestoreSlice", "RestoreV2", "DTensorRestoreV2"})
SAVING = frozenset({"Save", "SaveSlices", "SaveV2", "MergeV2Checkpoints"})
_INIT = "__saved_model_init_op"
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_PASSING = frozenset({"Identity", "ShardedFilename"})
"""Operations whose result is the path that they take, or begins with it."""
_USING = frozenset({"AssignVariableOp", "ReadVariableOp", "VarIsInitializedOp", "NoOp"})
"""Operations that leave a variable as it is, or show what they assign."""

_Place = tuple[str, str]
"""Function, or "" for the graph itself, and name of a node or of the function's argument."""


class OwnFiles:
    """The nodes of one MetaGraphDef, and what runs them.

    Args:
        graph: The MetaGraphDef.
        assets: Names of the tensors that the loader feeds with the paths of assets.
    """

    def __init__(self, graph: Any, assets: Iterable[str]) -> None:
        self._graph = graph
        self._assets = {_node(name) for name in assets}
        library = graph.graph_def.library.function
        self._arguments = {each.signature.name: [arg.name for arg in each.signature.input_arg] for each in library}
        self._nodes = {each.signature.name: {node.name: node for node in each.node_def} for each in library}
        self._nodes[""] = {node.name: node for node in graph.graph_def.node}
        self._callers: dict[str, list[tuple[str, Any]]] = {}
        for scope, nodes in self._nodes.items():
            for node in nodes.values():
                for called in self._called(node):
                    self._callers.setdefault(called, []).append((scope, node))

    def find(self) -> set[_Place]:
        """Return the operations that store or restore which only ever have the model's own paths, or never run."""
        graph, saver = self._graph, self._graph.saver_def
        signatures = {name: list(_tensors(each.outputs)) for name, each in graph.signature_def.items()}
        begin = signatures.pop(_INIT, [])
        for key in ("saved_model_main_op", "legacy_init_op"):
            begin += graph.collection_def[key].node_list.value
        begun = self._run(begin, graph.object_graph_def.concrete_functions)
        restored = self._run([saver.restore_op_name])
        requested = self._run([name for each in signatures.values() for name in each])
        return {
            *self._only(SAVING, requested | begun | restored),
            *self._only(INITIALISERS, requested | restored, 1, self._assets),
            *self._only(RESTORING, requested | begun, 0, {_node(saver.filename_tensor_name)}),
        }

    def _only(
        self, kinds: Collection[str], others: set[_Place], index: int = 0, fed: Collection[str] | None = None
    ) -> Iterator[_Place]:
        """Yield operations that nothing else runs, and whose input, if they run, comes from tensors that are fed."""
        for scope, nodes in self._nodes.items():
            for node in (node for node in nodes.values() if node.op in kinds and (scope, node.name) not in others):
                if fed is None or self._is_path(scope, node.input[index : index + 1], fed):
                    yield scope, node.name

    def _called(self, node: Any) -> Iterator[str]:
        """Yield the functions that a node names: as its operation, or in an attribute."""
        named = [node.op]
        for attribute in node.attr.values():
            named += [attribute.func.name, *(each.name for each in attribute.list.func)]
        yield from {name for name in named if name in self._arguments}

    def _run(self, tensors: Iterable[str], functions: Iterable[str] = ()) -> set[_Place]:
        """Return all that runs for tensors of the graph, and for functions with what they call."""
        found = {("", name) for name in reaching(self._nodes[""], map(_node, tensors))}
        waiting = [name for _, place in found for name in self._called(self._nodes[""][place])]
        waiting += functions
        seen = set()
        while waiting:
            name = waiting.pop()
            if name not in seen and name in self._nodes:
                seen.add(name)
                found |= {(name, inner) for inner in self._nodes[name]}
                waiting += [called for node in self._nodes[name].values() for called in self._called(node)]
        return found

    def _is_path(self, scope: str, entries: Iterable[str], fed: Collection[str]) -> bool:
        """Return whether a node's path can only come from tensors that the loader feeds, by whatever way."""
        waiting = [(scope, _node(entry)) for entry in entries]
        has_path = bool(waiting)
        seen: set[_Place] = set()
        while waiting:
            place = waiting.pop()
            if place in seen or (place[0] == "" and place[1] in fed):
                continue
            seen.add(place)
            if (sources := self._sources(place)) is None:
                return False
            waiting += sources
        return has_path

    def _sources(self, place: _Place) -> list[_Place] | None:
        """Return what a node only passes on, or an argument is called with; None where the path is made there."""
        scope, name = place
        if name in self._arguments.get(scope, ()):
            return self._given(scope, self._arguments[scope].index(name))
        node = self._nodes[scope].get(name)
        if node is None or not node.input:
            return None
        source = _node(node.input[0])
        if node.op == "ReadVariableOp" and not scope:
            return self._assigned(source)
        return [(scope, source)] if node.op in _PASSING else None

    def _assigned(self, variable: str) -> list[_Place] | None:
        """Return what a variable of the graph is ever assigned; None if something else may assign it."""
        handles = [_shared_name(node) for nodes in self._nodes.values() for node in nodes.values() if _is_handle(node)]
        handle = self._nodes[""].get(variable)
        if handle is None or not _is_handle(handle) or handles.count(_shared_name(handle)) != 1:
            return None
        users = [node for node in self._nodes[""].values() if variable in map(_node, node.input)]
        if any(node.op not in _USING for node in users):
            return None
        return [("", _node(node.input[1])) for node in users if node.op == "AssignVariableOp"]

    def _given(self, function: str, index: int) -> list[_Place] | None:
        """Return what an argument is in all calls; None if any of them, or the loader, may give something else."""
        found = []
        for scope, node in self._callers.get(function, ()):
            if node.op not in {*_CALLS, function} or index >= len(node.input):
                return None
            found.append((scope, _node(node.input[index])))
        objects = self._graph.object_graph_def
        if function in objects.concrete_functions:
            bound = objects.concrete_functions[function].bound_inputs
            captured = index - (len(self._arguments[function]) - len(bound))
            if captured < 0 or not objects.nodes[bound[captured]].HasField("asset"):
                return None
        return found


def _node(tensor: str) -> str:
    return tensor.removeprefix("^").partition(":")[0]


def _is_handle(node: Any) -> bool:
    return bool(node.op == "VarHandleOp")


def _shared_name(node: Any) -> bytes:
    return bytes(node.attr["shared_name"].s or node.name.encode())


def _tensors(infos: Any) -> Iterator[str]:
    for info in infos.values():
        sparse = info.coo_sparse
        yield from (info.name, sparse.values_tensor_name, sparse.indices_tensor_name, sparse.dense_shape_tensor_name)
        yield from (each.name for each in info.composite_tensor.components)
