"""What the commands do, as functions; the names that people use are in `bcl` itself."""

import math
import os
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcl.config import resolve
from bcl.errors import ConfigError
from bcl.games import Game, name_of_environment

if TYPE_CHECKING:
    from bcl.attacks import Attack
    from bcl.policies import Policy
else:
    # The command line reads the signatures, and its help should not wait seconds for PyTorch.
    Attack = Policy = object

INTERRUPTED = 130  # exit code of a command that was stopped by Ctrl-C
Where = str | os.PathLike[str]
"""A path, or a `Run`, which stands for its directory."""
Budgets = float | str | Sequence[float | str]


def named_game(game: object) -> str:
    """The name of a game; environments may be given as classes, or as functions that make one."""
    hint = "give its name, such as 'cartpole', or a Gymnasium environment's class or a function that makes one"
    if callable(game) and hasattr(game, "__name__"):  # a functools.partial has none
        return name_of_environment(game)
    return text("game", game, hint)


def game_of(game: object) -> Game:
    """A game as it is, or by name with the settings of its preset."""
    return game if isinstance(game, Game) else resolve(named_game(game)).game


def given(name: str, value: Any, kinds: type | tuple[type, ...], hint: str) -> Any:
    """The argument, if it is of one of these kinds; else a ConfigError."""
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise misfit(name, value, hint)
    return value


def misfit(name: str, value: object, hint: str) -> ConfigError:
    """The error about an argument that cannot be used."""
    shown = " ".join(repr(value).split())  # modules have several lines
    return ConfigError(f"{name} = {shown:.60} does not fit", hint)


def whole(name: str, value: object, at_least: int | None = None) -> int:
    """A whole number, not below a limit."""
    number = int(given(name, value, Integral, "give a whole number"))
    if at_least is not None and number < at_least:
        raise ConfigError(f"{name} = {number} is not possible", f"give {at_least} or more")
    return number


def finite(name: str, value: object) -> float:
    """A number that is not infinite."""
    number = float(given(name, value, Real, "give a number"))
    if not math.isfinite(number):
        raise misfit(name, value, "give a finite number")
    return number


def switch(name: str, value: object) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise misfit(name, value, "give True or False")
    return value


def text(name: str, value: object, hint: str) -> str:
    """Text that is not empty."""
    if not given(name, value, str, hint):
        raise misfit(name, value, hint)
    return str(value)


def choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse what is not one of some words."""
    if not isinstance(value, str) or value not in choices:
        raise misfit(name, value, f"one of {', '.join(choices)}")


def function(name: str, value: object) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise misfit(name, value, "give a function")


def path_of(name: str, value: object, hint: str = "give a path") -> Path:
    """A path, or a run's."""
    path = os.fspath(given(name, value, (str, os.PathLike), hint))
    if not isinstance(path, str) or not path or "\0" in path:
        raise misfit(name, value, hint)
    return Path(path)


def several(name: str, value: object) -> list[Any]:
    """The members of a sequence, which must not be empty; one number, word or attack is taken as a list of one."""
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
