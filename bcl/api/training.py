"""bcl.train and bcl.resume."""

import contextlib
import dataclasses
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bcl import recipes, zoo
from bcl.api import Policy, Where, function, given, named_game, path_of, switch, text
from bcl.api.workers import Workers
from bcl.config import Config, resolve_stages
from bcl.errors import ConfigError, StoreError, counted
from bcl.runs.directory import Repeats, RunDirectory, check_new
from bcl.settings import format_eps

if TYPE_CHECKING:
    from bcl.evaluation import Evaluation
    from bcl.experiment import Verdict

Say = Callable[[str], None]
OnRow = Callable[[str, dict[str, Any]], object]
Stages = list[tuple[recipes.Stage, Config]]
ALONE = Workers()
WORKERS = "give bcl.Workers(parallel=2) or the like"
# Options of `bcl train` that are something else here.
NO_SETTINGS = {
    "repeats": "call it in a loop over seeds: for seed in range(3): bcl.train(..., seed=seed)",
    **{field.name: f"give workers=bcl.Workers({field.name}=...)" for field in dataclasses.fields(Workers)},
}


@dataclass(frozen=True)
class Run:
    """A finished run. It stands for its directory, so every function that takes a path takes it."""

    folder: Path
    verdict: "Verdict"

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"Run('{self.folder}')"

    @property
    def sentence(self) -> str:
        """The verdict."""
        return self.verdict.sentence(RunDirectory(self.folder).config)

    def _repr_html_(self) -> str:
        return f"<p>{escape(str(self.folder))}</p><p>{escape(self.sentence)}</p>"

    def __str__(self) -> str:
        """A line per budget, flags, the start, and the verdict."""
        start = self.verdict.evaluation.start
        lines = _score_lines("", self.verdict.evaluation)
        lines += _score_lines(" on unlimited levels", self.verdict.unlimited) if self.verdict.unlimited else []
        lines += [f"flag {flag}" for flag in self.verdict.evaluation.flags]
        lines += [f"its start ({start.name}): {self.folder / start.file}"] if start else []
        return "\n".join([*lines, f"verdict: {self.sentence}"])


def _score_lines(where: str, evaluation: "Evaluation") -> list[str]:
    """The worst within each budget, beside that of the start."""
    from bcl.evaluation import lowest

    lines = []
    of_start = evaluation.start.scores if evaluation.start else []
    for eps in evaluation.budgets:
        words = f"under the worst attack within {format_eps(eps)}" if eps else "without attack"
        ours, *theirs = [lowest(s for s in some if s.eps <= eps) for some in (evaluation.scores, of_start) if some]
        beside = "".join(f" (its start: {score})" for score in theirs)
        lines.append(f"mean return over {counted(len(ours.returns), 'episode')}{where} {words}: {ours}{beside}")
    return lines


@dataclass(frozen=True)
class Order:
    """A run that can be made or continued: everything was checked, nothing was written."""

    out: Path
    begun: bool
    """It is there, with the same settings."""
    stages: Stages
    device: str
    init: Policy | None
    workers: Workers

    @property
    def config(self) -> Config:
        """Of the last stage."""
        return self.stages[-1][1]

    def create(self, folder: Path, seed: int) -> None:
        """Make the run directory."""
        from bcl import experiment

        stages = [(stage, dataclasses.replace(config, seed=seed)) for stage, config in self.stages]
        experiment.create(folder, stages, self.device, self.init)


def train(
    game: str | Callable[..., Any],
    /,
    *,
    recipe: str | None = None,
    out: Where | None = None,
    seed: int | None = None,
    size: Literal["full", "small"] | None = None,
    init: Where | Policy | None = None,
    config: Where | None = None,
    workers: Workers = ALONE,
    say: Say = lambda line: None,
    progress: bool | None = None,
    on_row: OnRow | None = None,
    finish: Callable[[Order], Any] | None = None,
    **settings: Any,
) -> Run:
    """Train an agent, or continue a run with the same settings. Any setting can be given as --section.key value; `bcl
    presets GAME` prints them all with help.

    In Python, settings are given by section, as in a configuration file: `curriculum={"runs": 2}` is `--curriculum.runs 2`,
    and `--repeats` is a loop over seeds. `say=print` shows a line for every stage and phase, `progress` bars (by default in
    terminals and notebooks); `on_row` is called with the folder of a training run and each row of its metrics. `finish` is
    the command line's own way to do what is left.

    Args:
        game: A preset (`bcl presets`), an Atari or Procgen game, or a Gymnasium id.
        recipe: A row of the paper's tables (`bcl presets` lists them), or a TOML file; vanilla where nothing says otherwise.
        out: Run directory; by default runs/GAME-RECIPE-sSEED.
        seed: Root of every random draw (0).
        size: small: a quick look; the result is not the paper's protocol.
        init: A policy file, a run or an agent of `bcl zoo` to start from, in place of the stages before the recipe's own.
        config: A TOML file of settings, above the preset and below flags.
    """
    _refuse_options("train", settings)
    name = _name(game, given("workers", workers, Workers, WORKERS))
    if recipe is not None:
        text("recipe", recipe, "give its name, such as 'at'")
    _check_watching(say, progress, on_row)
    if finish is not None:
        function("finish", finish)
    start = _agent(init)
    file = None if config is None else path_of("config", config)
    flags = settings | {key: value for key, value in (("seed", seed), ("size", size)) if value is not None}
    stages = resolve_stages(name, recipe=recipe, file=file, flags=flags, agent=_decided_by(start))
    last = stages[-1][1]
    usual = Path("runs") / f"{name}-{last.recipe}-s{last.seed}".replace("/", "-")
    folder = usual if out is None else path_of("out", out)
    begun = _check(folder, stages, flags, start)
    device = workers.worker_device()
    if not begun:
        from bcl import experiment

        experiment.check(stages, device if workers.local else "cpu", start, workers.trackers())
    order = Order(folder, begun, stages, device, start, workers)
    if finish:
        return finish(order)
    with RunDirectory(folder).lock(say):
        if not begun:
            order.create(folder, last.seed)
        return _finish(folder, workers, say, progress, on_row)


def resume(
    folder: Where,
    *,
    workers: Workers = ALONE,
    say: Say = lambda line: None,
    progress: bool | None = None,
    on_row: OnRow | None = None,
    finish: Callable[[Path, Workers], Any] | None = None,
    **settings: Any,
) -> Run:
    """Continue a run after a kill or Ctrl-C, under the settings it was started with; a finished one is only read.

    `say`, `progress`, `on_row` and `finish` are those of `bcl.train`. Settings other than the run's are refused.

    Args:
        folder: The run directory.
    """
    _refuse_options("resume", settings)
    given("workers", workers, Workers, WORKERS)
    _check_watching(say, progress, on_row)
    if finish is not None:
        function("finish", finish)
    path = path_of("folder", folder)
    run = RunDirectory(path)
    repeats = Repeats(path).runs()
    if repeats and not finish:
        what = f"'{path}' holds {counted(len(repeats), 'repeat')}"
        raise StoreError(what, "give one of them, or continue all with 'bcl resume'")
    for one in repeats or [run]:
        RunDirectory.open(one.path).check_settings(settings)
    # A repeat is not resumed while all of them are.
    others = run.repeats.lock() if run.repeats else contextlib.nullcontext()
    with run.lock(say), others:
        return finish(path, workers) if finish else _finish(path, workers, say, progress, on_row)


def _refuse_options(verb: str, settings: Mapping[str, Any]) -> None:
    for option, instead in NO_SETTINGS.items():
        if option in settings:
            raise ConfigError(f"'{option}' is not an argument of bcl.{verb}", instead)


def _check_watching(say: object, progress: object, on_row: object) -> None:
    """Refuse what cannot show how far a training is."""
    function("say", say)
    if progress is not None:
        switch("progress", progress)
    if on_row is not None:
        function("on_row", on_row)


def _name(game: str | Callable[..., Any], workers: Workers) -> str:
    name = named_game(game)
    elsewhere = not workers.local or workers.parallel > 1 or workers.judge_beside == "on"
    if callable(game) and ":" not in name and elsewhere:
        raise ConfigError(f"other processes cannot import '{name}'", "put it into a module of its own")
    return name


def _check(folder: Path, stages: Stages, flags: Mapping[str, Any], init: Policy | None) -> bool:
    """Whether the folder holds this run already; anything else that cannot be trained there is refused."""
    stage, config = stages[-1]
    if str(folder).startswith(zoo.PREFIX):
        raise ConfigError(f"--out '{folder}' would be taken for an agent of the zoo", "give it another name")
    if stage.strategy == "open" and "target" in flags.get("curriculum", {}):
        what = "an open-ended curriculum has no target"
        raise ConfigError(what, "leave --curriculum.target out, or stop it with --curriculum.max_runs")
    recipes.check_trainable(config.recipe, config.algo)
    if Repeats(folder).exists:
        hint = f"continue them with 'bcl resume {shlex.quote(str(folder))}', or give another --out"
        raise StoreError(f"'{folder}' is a run already, of several repeats", hint)
    if not RunDirectory(folder).exists:
        check_new(folder)
        return False
    given_init = None
    if init is not None:
        from bcl.policies.files import fingerprint

        given_init = fingerprint(init)
    RunDirectory.open(folder).check_same(config, given_init)
    return True


def _finish(run: Path, workers: Workers, say: Say, progress: bool | None, on_row: OnRow | None) -> Run:
    from bcl import experiment
    from bcl.api import console

    with console.live(run, progress, lines=False, on_row=on_row) as view:
        return Run(run, experiment.finish(run, workers.dispatcher(lambda: False, view.tick, say)))


def _agent(init: Where | Policy | None) -> Policy | None:
    """The one to start from."""
    if init is None:
        return None
    from bcl import policies
    from bcl.api.agents import load

    if isinstance(init, policies.Policy):
        return init
    return load(path_of("init", init, "give a policy, its file or a run"))


def _decided_by(agent: Policy | None) -> dict[str, Any]:
    """Settings that the agent to start from decides: its learner, and its layers where these can be chosen."""
    if agent is None:
        return {}
    layers = {"network": {"hidden": agent.spec.hidden}} if agent.spec.hidden else {}
    return {"algo": agent.spec.algo, **layers}
