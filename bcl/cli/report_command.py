"""bcl report."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro

if TYPE_CHECKING:
    from bcl.reports.data import Collected


@dataclass(frozen=True)
class Command:
    """Write one self-contained HTML page about a run, finished or not, or about a policy file and its results."""

    takes_settings: ClassVar[bool] = False

    target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|FILE|zoo:NAME")]
    """A run directory, a directory of repeats, a policy file, or an agent of `bcl zoo`."""
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
        print(f"next: {_next(collected)}")


def _next(collected: "Collected") -> str:
    from bcl.reports.collect import agent_file
    from bcl.runs.directory import RunDirectory

    if word := {"stopped": "resume", "at work": "status"}.get(collected.state):
        return f"bcl {word} {shlex.quote(collected.source)}"
    agent = Path(collected.agent)
    if agent_file(agent):
        return f"bcl {'video' if collected.evaluations else 'attack'} {shlex.quote(collected.agent)}"
    last = RunDirectory(agent).stages()[-1].policy  # the best one is gone; this is what it was copied from
    if last.exists():
        return f"bcl attack {shlex.quote(str(last))}"
    return f"copy the run again with all its files, '{agent}' has no best policy"
