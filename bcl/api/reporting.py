"""bcl.report, bcl.status and bcl.compare."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcl.api import Where, function, path_of, switch
from bcl.errors import ConfigError, GameError, MissingExtra
from bcl.result import Listing, Result, Table
from bcl.runs import store
from bcl.runs.directory import Repeats, RunDirectory

if TYPE_CHECKING:
    from bcl.experiment.status import RunState
    from bcl.reports.compare import Comparison
    from bcl.reports.data import Collected

HINT = "give a run or a policy file; an agent in memory is first written to one by bcl.save, and evaluated there"


@dataclass(frozen=True, repr=False)
class Report(Result):
    """A page about a run or a policy file. It stands for its file, so every function that takes a path takes it."""

    file: Path
    collected: "Collected"
    """What stands on the page."""

    def __fspath__(self) -> str:
        return str(self.file)

    def __repr__(self) -> str:
        return f"Report('{self.file}')"

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the path, the state of the run, its verdict, evaluations and certificates."""
        about = self.collected
        return {
            "report": str(self.file),
            "run": about.source,
            "state": about.state,
            "verdict": about.verdict,
            "evaluations": [evaluation.to_dict() for evaluation in about.evaluations],
            "certificates": [proof.to_dict() for proof in about.proofs],
        }

    def _rows(self) -> Iterator[dict[str, Any]]:
        """One per score, with what tells evaluations apart."""
        for one in self.collected.evaluations:
            about = {
                "agent": one.agent,
                "levels": one.levels,
                "starts": one.starts,
                "episodes": one.episodes,
                "seed": one.seed,
            }
            yield from (about | row for row in one._rows())

    def _tables(self) -> Iterator[Table]:
        for evaluation in self.collected.evaluations:
            yield from evaluation._tables()

    def _repr_html_(self) -> str:
        return f"<p>{escape(str(self.file))}: {escape(self.collected.verdict)}</p>{super()._repr_html_()}"

    def __str__(self) -> str:
        return f"verdict: {self.collected.verdict}\nreport: {self.file}"


@dataclass(frozen=True, repr=False)
class RunStatus(Listing):
    """Where a run stands; of repeats a row each."""

    state: "RunState"


def report(
    run: Where,
    *,
    out: Where | None = None,
    frames: bool = True,
    device: str = "auto",
    say: Callable[[str], object] = lambda line: None,
) -> Report:
    """Write one self-contained HTML page about a run, finished or not, or about a policy file and its results.

    `say` is called with lines for people. Where the game cannot be played here, sample frames are left out.

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
    switch("frames", frames)
    collected, file = check(target, None if out is None else path_of("out", out))
    if frames and agent_file(target):
        try:
            collected = dataclasses.replace(collected, frames=play_frames(collected, chosen, say))
        except (GameError, MissingExtra) as error:  # the rest of the page needs no game
            say(f"no sample frames: {error}")
    store.write_text(file, page(collected))
    return Report(file, collected)


def status(folder: Where) -> RunStatus:
    """Show where a run stands, also while another process works on it.

    Args:
        folder: The run directory.
    """
    path = path_of("folder", folder)
    repeats = Repeats(path)
    runs = repeats.runs()
    found = [_status(run, repeats) for run in runs or [RunDirectory(path)]]
    lines = [line for _, some in found for line in some]
    rows = [row for row, _ in found]
    states = ["at work" if row["state"] == "waiting" else row["state"] for row in rows]
    state: RunState = next((s for s in ("at work", "stopped") if s in states), "finished")
    data = {"state": state, "runs": [row | {"lines": some[1:]} for row, some in found]}
    if runs and state == "finished" and (summary := repeats.result()):
        scores = ", ".join(f"{name} {score:.4g}" for name, score in summary.get("final_scores", {}).items())
        lines.append(f"final scores: {scores}; median {summary.get('median')}, IQM {summary.get('iqm')}")
        data |= summary
    return RunStatus(str(path), rows, "\n".join(lines), data, state)


def _status(run: RunDirectory, repeats: Repeats) -> tuple[dict[str, Any], list[str]]:
    """The row and the lines of one run."""
    from bcl.api.console import piece_line
    from bcl.experiment.status import incumbent, status

    now = status(run.path)
    best = incumbent(run.path)
    waits = now.state == "stopped" and repeats.exists and store.owner(repeats.path)
    state = "waiting" if waits else now.state
    about = {"run": str(run.path), "recipe": now.config.recipe, "game": now.config.game.id, "seed": now.config.seed}
    lines = [f"{run.path}: {now.config.recipe} on {now.config.game.id}, seed {now.config.seed}"]
    lines += [f"  {line}" for line in now.lines]
    lines += [f"  best so far: {best}"] if best else []
    lines += [f"  {piece_line(piece)}" for piece in now.pieces]
    lines.append(f"  {state}{f' ({now.owner})' if now.owner else ''}")
    return about | {"state": state, "owner": now.owner, "best": best}, lines


def compare(*runs: Where) -> "Comparison":
    """Compare agents: the worst return within each budget with intervals, the probability that each does better than the
    first, what training took, and the paper's numbers. Nothing is played; `bcl attack` plays what is missing.

    Returns a block per game. Printed it is Markdown, `to_dict` is plain data; `bcl.reports.tables` also writes LaTeX.

    Args:
        runs: Run directories, directories of repeats, policy files that were evaluated, agents of `bcl zoo`; the others
            are compared with the first.
    """
    if not runs:
        raise ConfigError("there is nothing to compare", "give runs or policy files")
    from bcl.reports.compare import compare_agents

    return compare_agents([path_of("run", run, HINT) for run in runs])
