"""What the commands do, as functions; nothing heavy is imported at the top."""

import inspect
import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from bcl.config import resolve
from bcl.errors import ConfigError
from bcl.games import Game, name_of_environment
from bcl.settings import typed

if TYPE_CHECKING:
    from bcl.attacks import Attack
    from bcl.policies import Policy
else:
    # The command line reads the signatures, and its help should not wait seconds for PyTorch.
    Attack = Policy = object

Where = str | os.PathLike[str]
"""A path, or a `Run`, which stands for its directory."""
Budgets = float | str | Sequence[float | str]
# What an annotation allows, and what is said of anything else.
KINDS: dict[Any, tuple[Any, str]] = {
    int: (Integral, "give a whole number"),
    float: (Real, "give a number"),
    bool: (bool, "give True or False"),
    Callable: (Callable, "give a function"),
}


def named_game(game: object) -> str:
    """The name of a game, or of an environment's class or function."""
    hint = "give its name, such as 'cartpole', or a Gymnasium environment's class or a function that makes one"
    if callable(game) and hasattr(game, "__name__"):  # a functools.partial has none
        return name_of_environment(game)
    return text("game", game, hint)


def game_of(game: object, settings: Mapping[str, Any] | None = None) -> Game:
    """A game as it is, or by name with the settings of its preset and those that are given."""
    return game if isinstance(game, Game) and not settings else resolve(named_game(game), settings=settings).game


def given(name: str, value: Any, kinds: type | tuple[type, ...], hint: str) -> Any:
    """The argument, if it is of one of these kinds; else a ConfigError."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise misfit(name, value, hint)
    return value


def check(function: Callable[..., object], arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that do not fit the annotations of a function or dataclass, which checks unions itself."""
    for name, parameter in inspect.signature(function).parameters.items():
        value = arguments[name]
        hint = parameter.annotation
        if get_origin(hint) in (types.UnionType, Union):
            hint, *others = get_args(hint)
            if others != [type(None)] or value is None:
                continue
        kind = get_args(hint)[0] if get_origin(hint) is Annotated else get_origin(hint) or hint
        if kind in KINDS:
            given(name, value, *KINDS[kind])  # text is no number here
        elif isinstance(kind, type) and kind.__module__.startswith("bcl."):
            given(name, value, kind, f"give a {kind.__module__}.{kind.__name__}")
        if kind in (int, float, Literal):
            typed(hint, value, name, name)


def misfit(name: str, value: object, hint: str) -> ConfigError:
    """The error about an argument that cannot be used."""
    shown = " ".join(repr(value).split())  # modules have several lines
    return ConfigError(f"{name} = {shown:.60} does not fit", hint)


def text(name: str, value: object, hint: str) -> str:
    """Text that is not empty."""
    if not given(name, value, str, hint):
        raise misfit(name, value, hint)
    return str(value)


def path_of(name: str, value: object, hint: str = "give a path") -> Path:
    """A path, or a run's."""
    path = os.fspath(given(name, value, (str, os.PathLike), hint))
    if not isinstance(path, str) or not path or "\0" in path:
        raise misfit(name, value, hint)
    return Path(path)


def several(name: str, value: object) -> list[Any]:
    """The members of a sequence that is not empty; one alone is a list of one."""
    if isinstance(value, str | Real) or callable(value):
        return [value]
    hint = "give one or a list"
    try:
        members = list(given(name, value, Iterable, hint))
    except TypeError:  # a tensor without dimensions
        raise misfit(name, value, hint) from None
    if not members:
        raise ConfigError(f"{name} is empty", "give one or a list, or leave it out")
    return members
