"""Options from the environment and from a file: `--config FILE`, in TOML, with a table for each subcommand.

Of an option's values the first counts: command line, environment, file, default. A variable is named after subcommand
and option, `MQINFER_WORKER_RUN_TIMEOUT` for `mqinfer worker --run-timeout`; what many processes of a machine share has
one without the subcommand too, `MQINFER_BROKER`. The table `[common]` holds for every subcommand that has the option.
Click reads all of it; this module names the variables, checks the file, and says where a wrong value came from.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mqinfer.protocol.errors import ConfigError
from mqinfer.telemetry.exporting import ENDPOINT
from mqinfer.toml_files import parse_toml, read_text

_log = logging.getLogger("mqinfer")
SOURCES = (
    "Each option can also be set by a variable of the environment, MQINFER_COMMAND_OPTION, such as "
    "MQINFER_WORKER_CAPACITY, or in a TOML file, --config FILE (MQINFER_CONFIG). The command line comes first, then "
    "the environment, then the file."
)
"""The rule, for the end of each help."""
CONFIG_FILE = "config_file"
"""Name of the parameter that takes the file."""
_CONFIG = "MQINFER_CONFIG"
_COMMON = "common"
_PREFIX = "MQINFER"
_ALSO = (_CONFIG, "MQINFER_PASSWORD")
"""Variables that stand for no option of a subcommand."""
_CONNECTION = ("broker", "name", "ca-file", "cert-file", "key-file", "password-file")
_SHARED = {
    **{
        key: f"{_PREFIX}_{key}".replace("-", "_").upper()
        for key in (*_CONNECTION, "group", "metrics-port", "metrics-bind", "log-level", "log-format")
    },
    "otlp-endpoint": ENDPOINT,
}
"""Options of which one variable holds for every subcommand, and that variable."""
_MOST = {int: 1_000_000_000_000, float: 1_000_000_000.0}
"""Bounds of numbers whose option has no own one: above them the system's calls, which wait so long, say, fail."""
_PLACE = "mqinfer.config"
"""Where a context keeps the file that its options come from."""
_Command = Any
"""A command of click's, which typer may bring along."""


class SourcedGroup(TyperGroup):
    """The command as a whole: errors of a subcommand's options name the variable or the file of the value."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the subcommand that is asked for, which then takes its options from the file of the whole."""
        name, command, rest = super().resolve_command(ctx, args)
        if name and command and not ctx.resilient_parsing:  # a shell that completes a line
            _warn_of_unknown(self, name, command)
            if settings := ctx.meta.get(_PLACE):
                ctx.default_map = {name: settings.of((name,))}
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand; explain a wrong value of the environment or of the file."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if source := _source(error):
                raise ConfigError(f"{source}: {error.message}") from error
            raise


def add_sources(path: tuple[str, ...], command: _Command) -> None:
    """Set variables and bounds of the options of a subcommand, whose names are the path."""
    for option in _options(command):
        option.envvar = _variables(path, option)
        option.show_envvar = len(option.envvar) > 1
        option.callback = partial(_bounded, option.callback)


def _use(ctx: typer.Context, file: Path | None) -> Path | None:
    """Take the options that are not stated otherwise from a file.

    Raises:
        ConfigError: The file can't be read, or has a table or key that no subcommand has, or a value of a wrong kind.
    """
    if file is None or ctx.resilient_parsing:
        return None
    root = ctx.find_root()
    names = ctx.command_path.split()[len(root.command_path.split()) :]
    settings = _Settings(file, root.command)
    if names:
        ctx.default_map = settings.of(names)
    root.meta[_PLACE] = settings
    return file


_HELP = "TOML file of options, with a table for each subcommand."
ConfigFile = Annotated[Path | None, typer.Option("--config", is_eager=True, callback=_use, help=_HELP)]
"""Table of a subcommand."""
FirstConfigFile = Annotated[
    Path | None,
    typer.Option("--config", envvar=_CONFIG, is_eager=True, callback=_use, help=_HELP),
]
"""Table of the command as a whole; a subcommand's comes first."""


class _Settings:
    """A file of options, checked against all subcommands.

    Args:
        path: The file.
        root: The command as a whole.
    """

    def __init__(self, path: Path, root: _Command) -> None:
        self._path = path
        try:
            self._text = read_text(path)
            content = parse_toml(self._text)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--config {path}: can't be read: {error}") from error
        except ValueError as error:
            raise ConfigError(f"--config {path}: not valid TOML: {error}") from error
        self._root, self._tables, self._common = root, content, content.pop(_COMMON, {})
        self._check_common()
        for name, table in content.items():
            if name not in root.commands or not isinstance(table, dict):
                raise self._unknown((), name, [*root.commands], "table" if isinstance(table, dict) else "option")
            self._table(table, root.commands[name], (name,))  # the subcommands that it does not name are not imported

    def of(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the values for a subcommand, as click's `default_map`."""
        first, *below = names
        found = self._table(self._tables.get(first, {}), self._root.commands[first], (first,))
        for name in below:
            found = found[name]
        return found

    def place(self, names: Sequence[str], option: _Command) -> str:
        """Return where the value of an option stands."""
        for table in (".".join(names), _COMMON):
            for key in _keys(option):
                if line := self._line(table, key):
                    return f"{self._path}, line {line}, [{table}] {key}"
        return f"{self._path}, [{'.'.join(names)}] {_keys(option)[0]}"

    def _check_common(self) -> None:
        if not isinstance(self._common, dict):
            raise ConfigError(f"{self._path}: {_COMMON} = {self._common!r}: expected a table, [{_COMMON}]")
        if all(key.replace("_", "-") in _SHARED for key in self._common):
            return
        known = [key for _, command in commands_of(self._root) for each in _options(command) for key in _keys(each)]
        for key in self._common:
            if key not in known:
                raise self._unknown((_COMMON,), key, known, "option")

    def _table(self, table: Mapping[str, Any], command: _Command, path: tuple[str, ...]) -> dict[str, Any]:
        """Return the values of a subcommand and of those below it, by the names of click's parameters.

        Of the command as a whole those below are the ones that the file names: the others are not imported.
        """
        options = {key: option for option in _options(command) for key in _keys(option)}
        below = getattr(command, "commands", {})
        inner = {name: table[name] for name in below if isinstance(table.get(name), dict)}
        own = {key: value for key, value in table.items() if key not in inner}
        for key in own.keys() - options.keys():
            raise self._unknown(path, key, [*options, *below], "table" if isinstance(own[key], dict) else "option")
        found: dict[str, Any] = {
            options[key].name: self._value(source, key, value, options[key])
            for source, values in ((_COMMON, self._common), (".".join(path), own))
            for key, value in values.items()
            if key in options
        }
        for name, each in below.items():
            found[name] = self._table(inner.get(name, {}), each, (*path, name))
        return found

    def _value(self, table: str, key: str, value: object, option: _Command) -> Any:
        """Return a value as click takes it: as on the command line, but for flags."""
        if option.is_flag:
            if isinstance(value, bool):
                return value
            expected = "true or false"
        elif option.multiple:
            if isinstance(value, list) and all(map(_is_plain, value)):
                return [str(each) for each in value]
            expected = 'an array, such as ["one", "two"]'
        elif _is_plain(value):
            return str(value)
        else:
            expected = "text or a number"
        raise ConfigError(f"{self._where(table, key)} = {value!r}: expected {expected}")

    def _unknown(self, path: Sequence[str], key: str, known: Sequence[str], what: str) -> ConfigError:
        known = known if path else [_COMMON, *known]
        close = get_close_matches(key, known, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(dict.fromkeys(known))}"
        return ConfigError(f"{self._where('.'.join(path), key)}: there is no such {what}; {hint}")

    def _where(self, table: str, key: str) -> str:
        line = self._line(table, key)
        shown = f"[{table}] {key}" if table else f"[{key}]"
        return f"{self._path}, line {line}, {shown}" if line else f"{self._path}, {shown}"

    def _line(self, table: str, key: str) -> int:
        """Return the number of the line that sets a key, or begins a table; 0 where it is written in another way."""
        current = ""
        for number, line in enumerate(self._text.splitlines(), 1):
            if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line):
                current = header[1]
                if current == (f"{table}.{key}" if table else key):
                    return number
            elif current == table and re.match(rf"""\s*["']?{re.escape(key)}["']?\s*=""", line):
                return number
        return 0


def _bounded(callback: Callable[..., Any] | None, ctx: Any, param: Any, value: Any) -> Any:
    """Check the numbers of an option before its own callback, if there is one, receives them."""
    for each in value if isinstance(value, list | tuple) else (value,):
        most = _MOST.get(type(each))
        if most is not None and not -most <= each <= most:
            raise typer.BadParameter(f"expected a number from -{most:g} to {most:g}", ctx=ctx, param=param)
    return value if callback is None else callback(ctx, param, value)


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def commands_of(command: _Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], _Command]]:
    """List a command and all below it, each with its path."""
    if path:
        yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands_of(each, (*path, name))


def _options(command: _Command) -> list[_Command]:
    """List the options of a command that the environment and a file may set."""
    return [each for each in command.params if each.param_type_name == "option" and each.name != CONFIG_FILE]


def _keys(option: _Command) -> list[str]:
    """Return the names of an option in a file: those of the command line, also with underscores."""
    long = [each.removeprefix("--") for each in option.opts if each.startswith("--")]
    return list(dict.fromkeys([*long, *(each.replace("-", "_") for each in long)]))


def _variables(path: Sequence[str], option: _Command) -> list[str]:
    """Return the variables of an option: its own, then the one that it shares with other subcommands."""
    key = _keys(option)[0]
    own = "_".join((_PREFIX, *path, key)).replace("-", "_").upper()
    return [own, _SHARED[key]] if key in _SHARED else [own]


def _source(error: Any) -> str:
    """Return the variable or the place in the file that a wrong value came from; empty for the command line."""
    option, ctx = error.param, error.ctx
    if option is None or ctx is None:
        return ""
    source = ctx.get_parameter_source(option.name)
    names = ctx.command_path.split()[len(ctx.find_root().command_path.split()) :]
    if source is not None and source.name == "ENVIRONMENT":
        variable = next((each for each in option.envvar or () if os.environ.get(each)), "")
        return f"environment variable {variable} = {os.environ.get(variable, '')!r}"
    settings = ctx.find_root().meta.get(_PLACE)
    if source is not None and source.name == "DEFAULT_MAP" and settings is not None:
        return str(settings.place(names, option))
    return ""


def _warn_of_unknown(root: _Command, name: str, command: _Command) -> None:
    """Log variables that are not known and look like a known one; others may be some other program's."""
    given, known = {each for each in os.environ if each.startswith(f"{_PREFIX}_")}, {*_ALSO, *_SHARED.values()}
    for path, each in (((name,), command), ((), root)):
        if given <= known:
            return  # so that no other subcommand is imported
        known |= {
            variable for _, every in commands_of(each, path) for opt in _options(every) for variable in opt.envvar
        }
    for variable in sorted(given - known):
        if close := get_close_matches(variable, known, 1, 0.9):
            _log.warning("environment variable %s is not known; did you mean %s?", variable, close[0])
