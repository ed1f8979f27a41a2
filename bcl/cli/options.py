"""The options of commands as people read them, for tyro: help, errors and shell completion."""

import dataclasses
import importlib
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import docstring_parser
import tyro

from bcl.settings import Eps

_WORDS = {int: "NUMBER", float: "NUMBER", Path: "PATH"}
SHELLS = ("bash", "zsh", "fish")


def parse(command: Any, name: str, words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words after its name describe, and those that tyro does not know."""
    options, rest = tyro.cli(
        _described(command),
        prog=f"bcl {name}",
        description=command.__doc__,
        args=words,
        return_unknown_args=True,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    return command(**vars(options)), rest


def print_completion(commands: Iterable[str], shell: str) -> None:
    """A script that completes the commands and their options in a shell."""
    kinds = {name: importlib.import_module(f"bcl.cli.{name}_command").Command for name in commands}
    described = [Annotated[_described(kind), tyro.conf.subcommand(name=name)] for name, kind in kinds.items()]
    words, pairs = ["--tyro-print-completion", shell], (tyro.conf.FlagCreatePairsOff,)
    tyro.cli(typing.Union[tuple(described)], prog="bcl", args=words, config=pairs)  # type: ignore[call-overload] # noqa: UP007


def settings_help(config: type, names: Iterable[str]) -> str:
    """A few settings of a configuration by their dotted names, each with its type in words and its help."""
    lines = []
    for name in names:
        *sections, last = name.split(".")
        kind = config
        for section in sections:
            kind = typing.get_type_hints(kind)[section]
        hint = typing.get_type_hints(kind, include_extras=True)[last]
        lines += [f"  --{name} {_word(hint, last)}", f"      {_help(kind)[last]}"]
    return "\n".join(lines)


def _described(command: type) -> Any:
    """The fields of a command, its own before those it shares with others, as tyro shows them."""
    hints, help_of = typing.get_type_hints(command, include_extras=True), _help(command)
    shared = {field.name for base in command.__bases__ if base is not object for field in dataclasses.fields(base)}
    fields = []
    for field in sorted(dataclasses.fields(command), key=lambda field: field.name in shared):
        unset = field.default is False or field.default in (None, (), "")
        about: dict[str, Any] = {"help": help_of.get(field.name, ""), "help_behavior_hint": "" if unset else None}
        hint = hints[field.name]
        if typing.get_origin(hint) is not Annotated and hint is not bool:
            about["metavar"] = _word(hint, field.name)
        fields.append((field.name, Annotated[hint, tyro.conf.arg(**about)], dataclasses.field(default=field.default)))
    return dataclasses.make_dataclass("Options", fields, kw_only=True)


def _help(kind: type) -> dict[str, str]:
    documented = [
        param for base in reversed(kind.__mro__[:-1]) for param in docstring_parser.parse_from_object(base).params
    ]
    return {param.arg_name: " ".join((param.description or "").split()) for param in documented}


def _word(hint: Any, name: str) -> str:
    """What is to be written for a value of this type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint == Eps:
        return "BUDGET"
    if origin in (types.UnionType, typing.Union, Annotated):
        return _word(arguments[0], name)
    if origin is tuple:
        return f"{_word(arguments[0], name)} ..."
    if origin is Literal:
        return "{" + ",".join(arguments) + "}"
    return "{true,false}" if hint is bool else _WORDS.get(hint, name.upper())
