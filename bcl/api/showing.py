"""bcl.report, bcl.status, bcl.compare and bcl.video."""

import base64
import contextlib
import dataclasses
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bcl.api import Attack, Policy, Where, check, path_of
from bcl.api.evaluating import NO_LISTENER, ProgressListener
from bcl.errors import ConfigError, GameError, MissingExtra, counted
from bcl.result import Listing, Result, Table
from bcl.runs import store
from bcl.runs.directory import Repeats, RunDirectory
from bcl.settings import Natural, format_eps, format_return, parse_eps

if TYPE_CHECKING:
    from bcl.evaluation import Moment
    from bcl.experiment.status import RunState
    from bcl.reports.collect import Collected
    from bcl.reports.compare import Comparison

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
            about = {name: getattr(one, name) for name in ("agent", "levels", "starts", "episodes", "seed")}
            yield from (about | row for row in one._rows())

    def _tables(self) -> Iterator[Table]:
        for evaluation in self.collected.evaluations:
            yield from evaluation._tables()

    def _repr_html_(self) -> str:
        return f"<p>{escape(str(self.file))}: {escape(self.collected.verdict)}</p>{super()._repr_html_()}"

    def __str__(self) -> str:
        return f"verdict: {self.collected.verdict}\nreport: {shlex.quote(str(self.file))}"


@dataclass(frozen=True, repr=False)
class RunStatus(Listing):
    """Where a run stands; of repeats a row each."""

    state: "RunState"


@dataclass
class Video(Result):
    """Two files, and what they show."""

    mp4: Path
    gif: Path
    eps: float
    steps: int = 0
    changed: int = 0
    """Steps in which the attack changed the action."""
    total: float = 0.0
    """The return."""

    def passing(self, moments: "Iterable[Moment]", report: Callable[[int], object]) -> "Iterator[Moment]":
        """The same moments, counted as they pass."""
        for moment in moments:
            self.steps += 1
            self.total = moment.total
            self.changed += moment.wanted != moment.taken
            report(self.steps)
            yield moment

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        shown = {"eps": self.eps, "steps": self.steps, "changed": self.changed, "return": self.total}
        return {"mp4": str(self.mp4), "gif": str(self.gif), **shown}

    def _repr_html_(self) -> str:
        picture = base64.b64encode(self.gif.read_bytes()).decode()
        return f'<pre>{escape(str(self))}</pre><img src="data:image/gif;base64,{picture}">'

    def __str__(self) -> str:
        """A line per file, then what they show."""
        changed = f"{self.changed / self.steps:.0%} of actions changed"
        about = f"return {format_return(self.total)} after {counted(self.steps, 'step')}, {changed}"
        return "\n".join([*(f"{file}  {_size(file)}" for file in (self.mp4, self.gif)), about])


def _size(file: Path) -> str:
    size = file.stat().st_size
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


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
        frames: --no-frames leaves out sample frames, which have to be played the first time.
        device: Where sample frames are played: auto, cpu or cuda.
    """
    from bcl.api.agents import pick_device
    from bcl.reports import page
    from bcl.reports.frames import play_frames

    check(report, locals())
    target = path_of("run", run, HINT)
    chosen = str(pick_device(device))
    collected, file = page.check(target, None if out is None else path_of("out", out))
    if frames:
        try:
            collected = dataclasses.replace(collected, frames=play_frames(collected, chosen, say))
        except (GameError, MissingExtra) as error:  # the rest of the page needs no game
            say(f"no sample frames: {error}")
    store.write_text(file, page.page(collected))
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
        scores = ", ".join(f"{name} {format_return(score)}" for name, score in summary.get("final_scores", {}).items())
        iqm = format_return(summary["iqm"]) if "iqm" in summary else None
        lines.append(f"final scores: {scores}; median {summary.get('median')}, IQM {iqm}")
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
    """Compare agents: the worst return within each budget with intervals, the probability that each does better than
    the first, what training took, and the paper's numbers. Nothing is played; `bcl attack` plays what is missing.

    Returns a block per game. Printed it is Markdown, `to_dict` is plain data; `bcl.reports.tables` also writes LaTeX.

    Args:
        runs: Run directories, directories of repeats, policy files that were evaluated, agents of `bcl zoo`; the others
            are compared with the first.
    """
    if not runs:
        raise ConfigError("there is nothing to compare", "give runs or policy files")
    from bcl.reports.compare import compare_agents

    return compare_agents([path_of("run", run, HINT) for run in runs])


def video(
    agent: Policy | Where,
    *,
    attack: str | Attack = "pgd",
    eps: float | str | None = None,
    seed: Natural = 0,
    steps: Natural = 600,
    fps: float = 15.0,
    env_set: Literal["train", "eval"] | None = None,
    out: Where | None = None,
    device: str = "auto",
    listener: ProgressListener = NO_LISTENER,
) -> Video:
    """Show an agent under attack: the game, the perturbation magnified, what the agent saw. Writes an mp4 and a GIF.

    Args:
        agent: A run directory, a policy file or an agent of `bcl zoo`.
        attack: apgd, apgd-margin, corner-noise, fgsm, learned, mad, multi, multi-t, noise, pgd, pgd-N (N steps),
            ri-fgsm, square, worst-action or module:Attack.
        eps: Budget, such as 3/255; 0 is no attack; by default the first of the run, or of the game's preset.
        seed: Seed of the game and of the attack: it is the episode that `bcl attack --episodes 1` plays with that seed.
        steps: Agent steps to show; 0: the whole episode.
        fps: Agent steps per second; Atari games are played at 15.
        env_set: Procgen: the training levels, or the unlimited set.
        out: Folder; by default videos in the run, or in FILE.results beside the file.
        device: auto, cpu or cuda.
    """
    from bcl.api.playing import evaluated, named_attack
    from bcl.attacks import attack_label
    from bcl.device import threads, useful_threads
    from bcl.envs import make_env
    from bcl.evaluation import Cell, Plan, watch
    from bcl.evaluation.certify import USUAL_LENGTH
    from bcl.experiment.learned_adversary import ready
    from bcl.games import OBSERVATION_NAMES
    from bcl.reports.video import Subject, encode, ffmpeg, frames

    check(video, locals())
    given_budget = None if eps is None else parse_eps(eps)
    if not 1 <= fps <= 240:
        raise ConfigError(f"fps = {fps:g} is not possible", "give 1 to 240")
    wanted_folder = None if out is None else path_of("out", out)
    ffmpeg()  # before anything is played
    adversary = named_attack(attack, "attack")
    with evaluated(agent, device) as target:
        if out is None and not target.kept:
            raise ConfigError("an agent in memory has no folder", "say where the video goes: out='videos'")
        policy = target.policy
        budget = target.defaults.eps[0] if given_budget is None else given_budget
        game = target.game_to_play(env_set, seed, episodes=1)
        folder = wanted_folder or target.results.videos
        if folder.suffix.lower() in (".mp4", ".gif"):
            raise ConfigError(f"'{folder}' is to be a folder, for an mp4 and a GIF", "leave the ending out")
        stem = stem_of(attack if isinstance(attack, str) else attack_label(attack), budget, env_set, seed)
        made = Video(folder / f"{stem}.mp4", folder / f"{stem}.gif", budget)
        store.try_to_write(made.mp4)  # a folder that cannot be written is an error before the work
        render = len(policy.spec.obs_shape) == 1
        with (
            contextlib.closing(make_env(game, 1, policy.device, render=render)) as envs,
            threads(useful_threads(policy.spec.obs_shape, 1)),
        ):
            dimensions = OBSERVATION_NAMES.get(game.id, ())
            subject = Subject(game.id, adversary if budget else None, budget, envs.action_names, dimensions)
            listener.start(1)
            make_ready = ready(policy, Plan(game, 1, int(seed)), target.results.scores, listener.prepare)
            played = make_ready(Cell(adversary, budget))
            moments = watch(policy, envs, played.attack, budget, seed=seed, steps=steps or None)
            report = listener.begin("playing")
            passing = made.passing(moments, lambda done: report(done, steps or max(USUAL_LENGTH, done)))
            for path, data in zip((made.mp4, made.gif), encode(frames(passing, subject), fps), strict=True):
                store.write_bytes(path, data)
    return made


def stem_of(attack: str, eps: float, env_set: str | None, seed: int) -> str:
    """Name of the files, without their endings."""
    words = f"{attack} eps {format_eps(eps)}" if eps else "no attack"
    words += f" {env_set} levels" if env_set else ""
    return re.sub(r"[^a-z0-9.]+", "-", f"{words} seed {seed}".lower())
