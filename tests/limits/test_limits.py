"""The limits that keep the code readable: complexity, fields and methods of a class, modules of a folder, names."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "mqinfer"
COMPLEXITY = 10
FIELDS = 15
METHODS = 12
MODULES = 15

ABOVE: dict[str, int] = {}
"""What was above a limit when the limits came, as `module.py name`, and its size: it may shrink and not grow."""

BRANCHES = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.IfExp,
    ast.comprehension,
    ast.match_case,
    ast.Assert,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
WEAK_OPENING = re.compile(r"(Give(?! up)|Say|Tell|Note|Let|See to|Likewise|Of|So many|So much)s?\b")
"""Docstrings open with what happens (Return, Publish, Wait), those of attributes with a noun."""


@cache
def trees() -> dict[str, ast.Module]:
    """Parse each module of the package, by its path in it."""
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def definitions() -> list[tuple[str, Definition]]:
    """Return each class and function of the package with the path of its module."""
    return [(path, node) for path, tree in trees().items() for node in ast.walk(tree) if isinstance(node, Definition)]


def complexity_of(function: Definition) -> int:
    """Return McCabe's complexity, which counts boolean operators, comprehensions, handlers and match cases too."""
    count = 1
    todo = list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop()
        count += isinstance(node, BRANCHES)
        if isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        if not isinstance(node, Definition):
            todo.extend(ast.iter_child_nodes(node))
    return count


def fields_of(node: ast.ClassDef) -> int:
    """Return how many annotated fields a class has."""
    return sum(isinstance(statement, ast.AnnAssign) for statement in node.body)


def methods_of(node: ast.ClassDef) -> int:
    """Return how many public methods a class has; one with overloads is one."""
    return len({each.name for each in node.body if isinstance(each, FUNCTIONS) and not each.name.startswith("_")})


def excess() -> dict[str, int]:
    """Return what is above its limit, by module and name, with its size."""
    found: dict[str, int] = {}
    for path, node in definitions():
        if not isinstance(node, ast.ClassDef):
            sizes = [(complexity_of(node), COMPLEXITY)]
        else:
            sizes = [(fields_of(node), FIELDS), (methods_of(node), METHODS)]
        found |= {f"{path} {node.name}": size for size, limit in sizes if size > limit}
    return found


def test_limits() -> None:
    """Nothing exceeds its limit but what is listed, which has not grown, and is taken off the list when it fits."""
    assert excess() == ABOVE


def test_folders() -> None:
    """No folder has more modules than one can look over."""
    modules: dict[str, int] = defaultdict(int)
    for path in trees():
        if not path.endswith("__init__.py"):
            modules[str(Path(path).parent)] += 1
    assert {folder: count for folder, count in modules.items() if count > MODULES} == {}


def test_class_names_are_unique() -> None:
    """One name stands for one class in the whole package."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, node in definitions():
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            places[node.name].append(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def docstrings() -> Iterator[tuple[str, int, str]]:
    """Yield each docstring of a module, class, function and attribute, with its path and line."""
    bodies = [(path, tree.body) for path, tree in trees().items()]
    bodies += [(path, node.body) for path, node in definitions()]
    for path, body in bodies:
        for before, statement in zip([None, *body], body, strict=False):
            match statement:
                case ast.Expr(ast.Constant(str() as text)) if before is None or is_assignment(before):
                    yield path, statement.lineno, text


def is_assignment(statement: ast.stmt) -> bool:
    """Return whether a docstring behind a statement is that of an attribute or a constant."""
    return isinstance(statement, (ast.AnnAssign, ast.Assign))


def test_docstrings_open_with_what_they_say() -> None:
    """Docstrings open with a verb that says what happens, those of attributes with a noun."""
    weak = [f"{path}:{line} {text.splitlines()[0]}" for path, line, text in docstrings() if WEAK_OPENING.match(text)]
    assert weak == []


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []


def test_engines_are_the_broker_rooms_alone() -> None:
    """Nothing but `broker`, the commands and what compares engines imports one: another one changes no other file."""
    engine = re.compile(r"(mqinfer\.broker\.)?(mosquitto|nats|paho)(\.|$)")
    found = {
        path
        for path, tree in trees().items()
        if not path.startswith(("broker/", "cli/", "bench/contestants/"))
        for node in ast.walk(tree)
        for name in _imported(node)
        if engine.match(name)
    }
    assert not found
