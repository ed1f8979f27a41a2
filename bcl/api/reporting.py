"""bcl.report and bcl.compare; `bcl report` calls `report_of`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bcl.api import Where, path_of
from bcl.api.target import pick_device
from bcl.errors import ConfigError, MissingExtra
from bcl.reports.collect import agent_file
from bcl.reports.html import check, write_report

if TYPE_CHECKING:
    from bcl.reports.compare import Comparison
    from bcl.reports.data import Collected

Say = Callable[[str], object]
HINT = "give a run or a policy file"


def report(
    run: Where,
    *,
    out: Where | None = None,
    frames: bool = True,
    device: str = "auto",
    say: Say = lambda line: None,
) -> Path:
    """One page that opens anywhere about a run, finished or not, or a policy file; as `bcl report`. Gives its path.

    `frames=False` leaves out the sample frames, which have to be played the first time.
    """
    page = path_of("out", out) if out else None
    return report_of(path_of("run", run, HINT), page, frames=frames, device=device, say=say)[1]


def report_of(target: Path, out: Path | None, *, frames: bool, device: str, say: Say) -> tuple["Collected", Path]:
    """The page, and what stands on it. Where the game cannot be played here, sample frames are left out."""
    check(target, out)  # before an episode is played for nothing
    if frames and agent_file(target):
        say("sample frames: an episode under attack is played once, and kept for later reports")
        try:
            return write_report(target, out, device=pick_device(device))
        except MissingExtra as error:  # what plays the game; the rest of the page needs none of it
            say(f"no sample frames: {error}")
    return write_report(target, out, device=None)


def compare(*runs: Where) -> "Comparison":
    """Runs, directories of repeats or judged policy files side by side, the first the one to improve on; as `bcl compare`.

    Gives a block per game; `bcl.reports.tables` writes them as Markdown, LaTeX or JSON.
    """
    from bcl.reports import compare as comparing

    if not runs:
        raise ConfigError("there is nothing to compare", "give runs or policy files")
    return comparing.compare([path_of("run", run, HINT) for run in runs])
