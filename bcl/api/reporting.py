"""bcl.report and bcl.compare; `bcl report` calls `report_of`."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bcl.api import Where, path_of
from bcl.api.agents import pick_device
from bcl.errors import ConfigError, MissingExtra
from bcl.reports.collect import agent_file
from bcl.reports.frames import play_frames
from bcl.reports.html import check, page
from bcl.runs import store

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
    file = path_of("out", out) if out else None
    return report_of(path_of("run", run, HINT), file, frames=frames, device=device, say=say)[1]


def report_of(target: Path, out: Path | None, *, frames: bool, device: str, say: Say) -> tuple["Collected", Path]:
    """The page, and what stands on it. Where the game cannot be played here, sample frames are left out."""
    collected, out = check(target, out)
    if frames and agent_file(target):
        try:
            collected = dataclasses.replace(collected, frames=play_frames(target, pick_device(device), say))
        except MissingExtra as error:  # what plays the game; the rest of the page needs none of it
            say(f"no sample frames: {error}")
    store.write_text(out, page(collected))
    return collected, out


def compare(*runs: Where) -> "Comparison":
    """Runs, directories of repeats or judged policy files side by side, the first the one to improve on; as `bcl compare`.

    Gives a block per game; `bcl.reports.tables` writes them as Markdown, LaTeX or JSON.
    """
    from bcl.reports import compare as comparing

    if not runs:
        raise ConfigError("there is nothing to compare", "give runs or policy files")
    return comparing.compare([path_of("run", run, HINT) for run in runs])
