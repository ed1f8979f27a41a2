"""bcl resume."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeVar

import tyro

from bcl.api.workers import Workers
from bcl.runs.directory import Repeats, RunDirectory
from bcl.settings import parse_flags

if TYPE_CHECKING:
    pass

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Command(Workers):
    """Continue a run after a kill or Ctrl-C, under the settings it was started with. A finished run says so."""

    takes_settings: ClassVar[bool] = True

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run directory."""

    def run(self, settings: list[str]) -> None:
        """Check, then do what is left."""
        flags = parse_flags(settings)
        repeats = Repeats(self.folder).runs()
        for run in repeats or [RunDirectory(self.folder)]:
            RunDirectory.open(run.path).check_settings(flags)

        from bcl.api import console
        from bcl.cli.commands import finish, finish_repeats

        run = RunDirectory(self.folder)
        # A repeat is not resumed while all of them are.
        others = run.repeats.lock() if run.repeats else contextlib.nullcontext()
        with run.lock(console.say), others:
            if repeats:
                finish_repeats(self.folder, self)
                return
            if run.finished:
                print(f"'{self.folder}' is finished")
            finish(self.folder, self)
