"""bcl report."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from bcl.errors import MissingExtra


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
        from bcl.api.target import pick_device
        from bcl.cli import console
        from bcl.reports.collect import agent_file
        from bcl.reports.html import write_report

        device = None if self.no_frames or not agent_file(self.target) else pick_device(self.device)
        if device:
            console.say("sample frames: an episode under attack is played once, and kept for later reports")
        try:
            collected, out = write_report(self.target, self.out, device=device)
        except MissingExtra as error:  # what plays the game; the rest of the page needs none of it
            console.say(f"no sample frames: {error}")
            collected, out = write_report(self.target, self.out, device=None)
        print(f"verdict: {collected.verdict}")
        print(f"report: {out}")
        word = {"stopped": "resume", "at work": "status"}.get(collected.state, "video")
        print(f"next: bcl {word} {shlex.quote(collected.agent if word == 'video' else collected.source)}")
