"""Errors a user can act on: what is wrong, and what to do. Any other exception is a bug of this package."""

import difflib
from collections.abc import Iterable
from importlib import import_module
from typing import Any


class BclError(Exception):
    """A mistake or a condition outside the program; `message` says what, `hint` says what to do next.

    Notes (`add_note`) are shown below the sentence.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class ConfigError(BclError):
    """A setting that is unknown, ill-typed or out of range."""


class GameError(BclError):
    """A game that does not exist, or one that we cannot play."""


class MissingExtra(BclError):
    """An optional package, or a system library it needs, is not installed."""


class StoreError(BclError):
    """A run directory that cannot be created, read, written or continued."""


class WeightsError(BclError):
    """A weights file that is damaged, foreign, or does not fit."""


class TrainingError(BclError):
    """A training run that cannot go on."""


def optional(module: str, what: str, hint: str) -> Any:
    """A module of a package that need not be installed; where it is not, what needs it and how to install it."""
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtra(what, hint) from None


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint naming the closest known word, or `otherwise` when nothing is close."""
    by_lower = {k.lower(): k for k in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"did you mean '{by_lower[close[0]]}'?" if close else otherwise


def counted(number: float, what: str, several: str = "") -> str:
    """`1 episode`, `2,000 episodes`, `0.5 hours`; `several` is the plural where it takes more than an s."""
    return f"{number:,.10g} {what if number == 1 else several or what + 's'}"
