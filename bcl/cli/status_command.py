"""bcl status."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from bcl.runs import store


@dataclass(frozen=True)
class Command:
    """Tell where a run stands, also while another process works on it."""

    takes_settings: ClassVar[bool] = False

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run directory."""

    def run(self, _: list[str]) -> None:
        """Read and print; nothing is changed."""
        repeated = store.repeats(self.folder)
        states = [_print(folder, self.folder) for folder in repeated or [self.folder]]
        state = next((s for s in ("at work", "stopped") if s in states), "finished")
        if repeated and state == "finished" and (self.folder / "result.json").exists():
            summary = store.read_json(self.folder / "result.json")
            print(
                f"final scores {summary.get('final_scores')}, median {summary.get('median')}, IQM {summary.get('iqm')}"
            )
        word = {"finished": "report", "stopped": "resume", "at work": "status"}[state]
        print(f"next: bcl {word} {shlex.quote(str(self.folder))}")


def _print(run: Path, whole: Path) -> str:
    from bcl.api.console import piece_line
    from bcl.experiment.status import incumbent, status

    now = status(run)
    print(f"{run}: {now.config.recipe} on {now.config.game.id}, seed {now.config.seed}")
    for line in now.lines:
        print(f"  {line}")
    if best := incumbent(run):
        print(f"  best so far: {best}")
    for piece in now.pieces:
        print(f"  {piece_line(piece)}")
    waits = now.state == "stopped" and run != whole and store.owner(whole)
    print(f"  {'waiting' if waits else now.state}{f' ({now.owner})' if now.owner else ''}")
    return "at work" if waits else now.state
