"""What the commands do, as functions; the names that people use are in `bcl` itself."""

import os
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcl.errors import ConfigError
from bcl.games import name_of_environment

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
    if callable(game):
        return name_of_environment(game)
    return str(given("game", game, str, "give its name, such as 'cartpole', or a Gymnasium environment's class"))


def given(name: str, value: Any, kinds: type | tuple[type, ...], hint: str) -> Any:
    """An argument of one of these kinds; another is refused in one sentence."""
    if not isinstance(value, kinds) or isinstance(value, bool):
        shown = " ".join(repr(value).split())  # modules have several lines
        raise ConfigError(f"{name} = {shown:.60} does not fit", hint)
    return value


def whole(name: str, value: object) -> int:
    """A whole number."""
    return int(given(name, value, Integral, "give a whole number"))


def path_of(name: str, value: object, hint: str = "give a path") -> Path:
    """A path, or a run's."""
    return Path(given(name, value, (str, os.PathLike), hint))


def several(name: str, value: object) -> list[Any]:
    """The members of a sequence, of which there is one at least; one number, word or attack stands for itself."""
    if isinstance(value, str | Real) or callable(value):
        return [value]
    members = list(given(name, value, Iterable, "give one or a list"))
    if not members:
        raise ConfigError(f"{name} is empty", "give one or a list, or leave it out")
    return members
