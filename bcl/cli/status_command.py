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
        for folder in store.repeats(self.folder) or [self.folder]:
            _print(folder, self.folder)


def _print(run: Path, whole: Path) -> None:
    from bcl.cli.console import piece_line
    from bcl.experiment.status import incumbent, status

    now = status(run)
    print(f"{run}: {now.config.recipe} on {now.config.game.id}, seed {now.config.seed}")
    for line in now.lines:
        print(f"  {line}")
    if best := incumbent(run):
        print(f"  best so far: {best}")
    for piece in now.pieces:
        print(f"  {piece_line(piece)}")
    by = f" ({now.owner})" if now.owner else ""
    print(f"  {now.state}{by}")
    word = {"finished": "bcl attack", "stopped": "bcl resume", "at work": "bcl status"}[now.state]
    print(f"next: {word} {shlex.quote(str(run if now.state == 'finished' else whole))}")
