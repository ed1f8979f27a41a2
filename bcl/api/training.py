"""bcl.train and bcl.resume; `bcl train` prepares its runs here."""

import dataclasses
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bcl import recipes, zoo
from bcl.api import Where, given, named_game, path_of
from bcl.api.workers import Workers
from bcl.config import Config, resolve_stages
from bcl.errors import ConfigError, StoreError
from bcl.runs.directory import Repeats, RunDirectory, check_new

if TYPE_CHECKING:
    from bcl.api.following import OnRow
    from bcl.experiment import Verdict
    from bcl.policies import Policy

Say = Callable[[str], None]
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

    def _repr_html_(self) -> str:
        sentence = self.verdict.sentence(RunDirectory(self.folder).config)
        return f"<p>{escape(str(self.folder))}</p><p>{escape(sentence)}</p>"


@dataclass(frozen=True)
class Order:
    """A run that can be made: everything was checked, nothing was written."""

    stages: list[tuple[recipes.Stage, Config]]
    with_seed: Callable[[int], list[tuple[recipes.Stage, Config]]]
    out: Path
    device: str
    init: "Policy | None"

    @property
    def config(self) -> Config:
        """Of the last stage."""
        return self.stages[-1][1]

    def create(self, folder: Path, seed: int | None = None) -> None:
        """Make the run directory, for another seed on request."""
        from bcl import experiment

        stages = self.stages if seed is None else self.with_seed(seed)
        experiment.create(folder, stages, self.device, self.init)


def prepare(
    game: str | Callable[..., Any],
    settings: Mapping[str, Any],
    *,
    recipe: str | None,
    out: Where | None,
    seed: int | None,
    budget: str | None,
    init: "Where | Policy | None",
    config: Where | None,
    workers: Workers,
) -> Order:
    """Refuse what cannot be trained before anything is written."""
    given("workers", workers, Workers, WORKERS)
    here_alone = callable(game)
    game = named_game(game)
    if here_alone and ":" not in game and (not workers.local or workers.parallel > 1):
        raise ConfigError(f"other processes cannot import '{game}'", "put it into a module of its own")
    if recipe is not None:
        given("recipe", recipe, str, "give its name, such as 'at'")
    own = {name: value for name, value in (("seed", seed), ("budget", budget)) if value is not None}
    flags, file = {**settings, **own}, path_of("config", config) if config else None
    start = _agent(init)
    decided = _decided_by(start)

    def with_seed(seed: int) -> list[tuple[recipes.Stage, Config]]:
        return resolve_stages(game, recipe=recipe, file=file, flags=flags | {"seed": seed}, agent=decided)

    stages = resolve_stages(game, recipe=recipe, file=file, flags=flags, agent=decided)
    last = stages[-1][1]
    folder = path_of("out", out or Path("runs") / f"{game}-{last.recipe}-s{last.seed}".replace("/", "-"))
    if str(folder).startswith(zoo.PREFIX):
        raise ConfigError(f"--out '{folder}' would be taken for an agent of the zoo", "give it another name")
    if RunDirectory(folder).exists or Repeats(folder).exists:
        hint = f"continue it with 'bcl resume {shlex.quote(str(folder))}', or give another --out"
        raise StoreError(f"'{folder}' is a run already", hint)
    _refuse_ignored(stages[-1][0], flags)
    check_new(folder)
    recipes.check_trainable(last.recipe, last.algo)

    from bcl import experiment

    device = workers.worker_device()
    experiment.check(stages, device if workers.local else "cpu", start, workers.trackers())
    return Order(stages, with_seed, folder, device, start)


def train(
    game: str | Callable[..., Any],
    *,
    recipe: str | None = None,
    out: Where | None = None,
    seed: int | None = None,
    budget: Literal["full", "small"] | None = None,
    init: "Where | Policy | None" = None,
    config: Where | None = None,
    workers: Workers = ALONE,
    say: Say = lambda line: None,
    progress: bool | None = None,
    on_row: "OnRow | None" = None,
    **settings: Any,
) -> Run:
    """Train an agent, as `bcl train` does; its options are these, and `--repeats` is a loop over seeds.

    Settings are given by section, as in a configuration file: `curriculum={"runs": 2}` is `--curriculum.runs 2`.
    `say=print` shows a line for every stage and phase, `progress` bars (by default in terminals and notebooks); `on_row`
    is called with the folder of a training run and each row of its metrics.
    """
    for option, instead in NO_SETTINGS.items():
        if option in settings:
            raise ConfigError(f"'{option}' is not an argument of bcl.train", instead)
    order = prepare(
        game, settings, recipe=recipe, out=out, seed=seed, budget=budget, init=init, config=config, workers=workers
    )
    with RunDirectory(order.out).lock():
        order.create(order.out)
        return _finish(order.out, workers, say, progress, on_row)


def resume(
    run: Where,
    *,
    workers: Workers = ALONE,
    say: Say = lambda line: None,
    progress: bool | None = None,
    on_row: "OnRow | None" = None,
) -> Run:
    """Continue a run after a kill or Ctrl-C, under the settings it was started with; a finished one is only read."""
    given("workers", workers, Workers, WORKERS)
    folder = path_of("run", run)
    with RunDirectory.open(folder).lock(say):
        return _finish(folder, workers, say, progress, on_row)


def _finish(run: Path, workers: Workers, say: Say, progress: bool | None, on_row: "OnRow | None") -> Run:
    from bcl import experiment
    from bcl.api.following import following

    with following(run, progress, on_row) as tick:
        return Run(run, experiment.finish(run, workers.dispatcher(lambda: False, tick, say)))


def _agent(init: "Where | Policy | None") -> "Policy | None":
    """The one to start from."""
    if init is None:
        return None
    from bcl.api.agents import load
    from bcl.policies import Policy

    return init if isinstance(init, Policy) else load(path_of("init", init, "give a policy, its file or a run"))


def _decided_by(agent: "Policy | None") -> dict[str, Any]:
    """Settings that the agent to start from decides: its learner, and its layers where these can be chosen."""
    if agent is None:
        return {}
    layers = {"network": {"hidden": agent.spec.hidden}} if agent.spec.hidden else {}
    return {"algo": agent.spec.algo, **layers}


def _refuse_ignored(stage: recipes.Stage, flags: Mapping[str, Any]) -> None:
    given = flags.get("curriculum", {})
    if stage.strategy == "open" and "target" in given:
        what = "an open-ended curriculum has no target"
        raise ConfigError(what, "leave --curriculum.target out, or stop it with --curriculum.max_runs")
