"""bcl status."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from bcl.runs.directory import Repeats, RunDirectory


@dataclass(frozen=True)
class Command:
    """Tell where a run stands, also while another process works on it."""

    takes_settings: ClassVar[bool] = False

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run directory."""

    def run(self, _: list[str]) -> None:
        """Read and print; nothing is changed."""
        repeats = Repeats(self.folder)
        runs = repeats.runs()
        states = [_print(run, repeats) for run in runs or [RunDirectory(self.folder)]]
        state = next((s for s in ("at work", "stopped") if s in states), "finished")
        if runs and state == "finished" and (found := repeats.result()):
            print(f"final scores {found.get('final_scores')}, median {found.get('median')}, IQM {found.get('iqm')}")
        word = {"finished": "report", "stopped": "resume", "at work": "status"}[state]
        print(f"next: bcl {word} {shlex.quote(str(self.folder))}")


def _print(run: RunDirectory, repeats: Repeats) -> str:
    from bcl.api.console import piece_line
    from bcl.experiment.status import incumbent, status

    now = status(run.path)
    print(f"{run.path}: {now.config.recipe} on {now.config.game.id}, seed {now.config.seed}")
    for line in now.lines:
        print(f"  {line}")
    if best := incumbent(run.path):
        print(f"  best so far: {best}")
    for piece in now.pieces:
        print(f"  {piece_line(piece)}")
    waits = now.state == "stopped" and repeats.exists and repeats.owner()
    print(f"  {'waiting' if waits else now.state}{f' ({now.owner})' if now.owner else ''}")
    return "at work" if waits else now.state
