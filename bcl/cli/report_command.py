"""bcl report."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro


@dataclass(frozen=True)
class Command:
    """Write one self-contained HTML page about a run, finished or not, or about a policy file and its results."""

    takes_settings: ClassVar[bool] = False

    target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|FILE")]
    """A run directory, a directory of repeats, or a policy file."""
    out: Path | None = None
    """The page; by default report.html in the run, or in the folder of results beside a policy file."""
    no_frames: bool = False
    """Leave out the sample frames, which have to be played the first time."""
    device: str = "auto"
    """Where sample frames are played: auto, cpu or cuda."""

    def run(self, _: list[str]) -> None:
        """Collect, draw, write."""
        from bcl.api.reporting import report_of
        from bcl.cli import console

        collected, out = report_of(
            self.target, self.out, frames=not self.no_frames, device=self.device, say=console.say
        )
        print(f"verdict: {collected.verdict}")
        print(f"report: {out}")
        word = {"stopped": "resume", "at work": "status"}.get(collected.state, "video")
        print(f"next: bcl {word} {shlex.quote(collected.agent if word == 'video' else collected.source)}")
