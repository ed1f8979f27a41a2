"""bcl.report and bcl.compare."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bcl.api import Where, function, path_of, switch
from bcl.errors import ConfigError, MissingExtra
from bcl.runs import store

if TYPE_CHECKING:
    from bcl.reports.compare import Comparison
    from bcl.reports.data import Collected

HINT = "give a run or a policy file"


def report(
    run: Where,
    *,
    out: Where | None = None,
    frames: bool = True,
    device: str = "auto",
    say: Callable[[str], object] = lambda line: None,
    tell: "Callable[[Collected], object]" = lambda collected: None,
) -> Path:
    """Write one self-contained HTML page about a run, finished or not, or about a policy file and its results.

    Gives its path. `say` is called with lines for people, `tell` with what stands on the page. Where the game cannot be
    played here, sample frames are left out.

    Args:
        run: A run directory, a directory of repeats, a policy file, or an agent of `bcl zoo`.
        out: The page; by default report.html in the run, or in the folder of results beside a policy file.
        frames: Show sample frames, which have to be played the first time; --no-frames leaves them out.
        device: Where sample frames are played: auto, cpu or cuda.
    """
    from bcl.api.agents import pick_device
    from bcl.reports.collect import agent_file
    from bcl.reports.frames import play_frames
    from bcl.reports.page import check, page

    target = path_of("run", run, HINT)
    chosen = pick_device(device)
    function("say", say)
    function("tell", tell)
    switch("frames", frames)
    collected, file = check(target, None if out is None else path_of("out", out))
    if frames and agent_file(target):
        try:
            collected = dataclasses.replace(collected, frames=play_frames(collected, chosen, say))
        except MissingExtra as error:  # what plays the game; the rest of the page needs none of it
            say(f"no sample frames: {error}")
    store.write_text(file, page(collected))
    tell(collected)
    return file


def compare(*runs: Where) -> "Comparison":
    """Set agents side by side: the worst return within each budget with intervals, how probably each does better than the
    first, what training took, and the paper's numbers beside. Plays nothing: what is missing, `bcl attack` plays.

    Gives a block per game. Printed it is Markdown, `to_dict` is plain data; `bcl.reports.tables` also writes LaTeX.

    Args:
        runs: Run directories, directories of repeats, policy files that were evaluated, agents of `bcl zoo`; the first is
            the one to improve on.
    """
    if not runs:
        raise ConfigError("there is nothing to compare", "give runs or policy files")
    from bcl.reports.compare import compare_agents

    return compare_agents([path_of("run", run, HINT) for run in runs])
