"""bcl.train and bcl.resume."""

import contextlib
import dataclasses
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bcl import recipes, zoo
from bcl.api import Policy, Where, check, named_game, path_of, text
from bcl.api.workers import Workers
from bcl.config import Stages, preset_for, resolve_stages
from bcl.errors import BclError, ConfigError, StoreError, TrainingError, counted
from bcl.games import atari_name
from bcl.result import Result, Table
from bcl.runs import store
from bcl.runs.directory import Repeats, RunDirectory, check_new, make_room, runs_of, take_recipes
from bcl.settings import Count, format_eps, format_return

if TYPE_CHECKING:
    from bcl.evaluation import Evaluation
    from bcl.experiment import Dispatcher, Verdict
    from bcl.runs.executors import Stop

Say = Callable[[str], None]
OnRow = Callable[[str, dict[str, Any]], object]
ALONE = Workers()
A_QUICK_LOOK = (
    "a quick look: few steps, runs, phases and episodes, and no start is refused as too weak; the result is not the "
    "paper's protocol"
)
KNOWN_HERE = (
    "the game is known to this process alone: others can report this run, but not evaluate or resume it (docs/games.md)"
)


@dataclass(frozen=True)
class Run(Result):
    """A finished run. It stands for its directory, so every function that takes a path takes it."""

    folder: Path
    verdict: "Verdict"

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self.folder}')"

    @property
    def sentence(self) -> str:
        """The verdict."""
        return self.verdict.sentence(RunDirectory(self.folder).config)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"run": str(self.folder), "verdict": self.sentence, **self.verdict.to_dict()}

    def _rows(self) -> Iterator[dict[str, Any]]:
        """One per score."""
        for evaluation in self.verdict.evaluations:
            where = {"run": str(self.folder), "unlimited_levels": evaluation is self.verdict.unlimited}
            for row in evaluation._rows():
                yield where | row

    def _tables(self) -> Iterator[Table]:
        for evaluation in self.verdict.evaluations:
            yield from evaluation._tables()

    def _repr_html_(self) -> str:
        return f"<p>{escape(str(self.folder))}: {escape(self.sentence)}</p>{super()._repr_html_()}"

    def __str__(self) -> str:
        """A line per budget, flags, the agents that training began from, and the verdict."""
        lines = _score_lines("", self.verdict.evaluation)
        lines += _score_lines(" on unlimited levels", self.verdict.unlimited) if self.verdict.unlimited else []
        lines += [f"flag {flag}" for flag in self.verdict.evaluation.flags]
        starts = self.verdict.evaluation.began_from
        lines += [f"start ({start.name}): {shlex.quote(str(start.file))}" for start in starts]
        return "\n".join([*lines, f"verdict: {self.sentence}"])


def _score_lines(where: str, evaluation: "Evaluation") -> list[str]:
    """The worst within each budget, beside that of what training began from."""
    from bcl.evaluation import lowest

    lines = []
    for eps in evaluation.budgets:
        words = f"under the worst attack within {format_eps(eps)}" if eps else "without attack"
        ours = lowest(s for s in evaluation.scores if s.eps <= eps)
        beside = evaluation.beside(eps, str)
        lines.append(f"mean return over {counted(len(ours.returns), 'episode')}{where} {words}: {ours}{beside}")
    return lines


@dataclass(frozen=True, repr=False)
class RepeatedRun(Run):
    """Runs that differ in their seed alone; the verdict is that of the median one."""

    runs: tuple[Run, ...]
    summary: Mapping[str, Any]
    """Final scores by run, what they are, the median run and the IQM."""

    @property
    def median(self) -> Run:
        """The run with the median final score."""
        return next(run for run in self.runs if run.folder.name == self.summary["median"])

    @property
    def sentence(self) -> str:
        """The verdict on the median."""
        return self.median.sentence

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"run": str(self.folder), **self.summary, "runs": [run.to_dict() for run in self.runs]}

    def _rows(self) -> Iterator[dict[str, Any]]:
        for run in self.runs:
            yield from run._rows()

    def _repr_html_(self) -> str:
        scores = "".join(f"<p>{escape(line)}</p>" for line in self._final_scores())
        return f"{scores}{self.median._repr_html_()}"

    def __str__(self) -> str:
        """The text of every run, then their final scores."""
        return "\n".join([*map(str, self.runs), *self._final_scores()])

    def _final_scores(self) -> list[str]:
        finals = self.summary["final_scores"]
        median = self.median.folder
        scores = " ".join(map(format_return, finals.values()))
        return [
            f"final score: {self.summary['final_score_is']}",
            f"final scores of {len(self.runs)} repeats: {scores}, IQM {format_return(self.summary['iqm'])}",
            f"the median is {median} with {format_return(finals[median.name])}",
        ]


@dataclass(frozen=True)
class Finisher:
    """Does the rest of a run that this process has locked."""

    workers: Workers
    say: Say
    progress: bool | None
    on_row: OnRow | None
    as_command: bool

    @contextlib.contextmanager
    def stoppable(self, path: Path) -> "Iterator[Stop]":
        """Around all work on a run or on repeats: Ctrl-C says how to continue them, whenever it comes."""
        from bcl.api import console

        if Repeats(path).exists and not Repeats(path).runs():
            raise StoreError(f"the repeats in '{path}' name no runs", "start anew with another --out")
        message = self._continue_with(path) + _resume_warning(runs_of(path)[0])
        stops = console.stop_requests(message) if self.as_command else contextlib.nullcontext(lambda: False)
        with stops as interrupted:
            try:
                yield interrupted
            except KeyboardInterrupt:  # inside `stops`: a second one that comes here says the same
                raise KeyboardInterrupt(message) from None

    def finish_repeats(self, group: Path, interrupted: "Stop") -> RepeatedRun:
        """Every repeat; then the median by the paper's final score, and the IQM beside it."""
        from bcl import experiment

        runs = Repeats(group).runs()
        only_read = RunDirectory(group).finished and all(run.finished for run in runs)
        store.sweep(group)
        if shared := experiment.shared_stages(runs):
            for run in runs:
                until = ", up to the stage whose median all repeats go on from"
                with self._held(run), self.at_work(run.path, group, interrupted, until) as dispatcher:
                    experiment.train_until_median(run.path, dispatcher)
            experiment.share_median(shared)
        finished = []
        for run in runs:
            with self._held(run), self.at_work(run.path, group, interrupted) as dispatcher:
                finished.append(Run(run.path, experiment.finish(run.path, dispatcher)))
            self.say(f"verdict: {finished[-1].sentence}")
        verdicts = {run.folder.name: run.verdict for run in finished}
        summary = experiment.summary(runs, [*verdicts.values()])
        if not only_read:
            Repeats(group).finish(summary)
        return RepeatedRun(group, verdicts[summary["median"]], tuple(finished), summary)

    def _held(self, run: RunDirectory) -> contextlib.AbstractContextManager[None]:
        """Its lock; what is finished is only read, from wherever it lies."""
        return contextlib.nullcontext() if run.finished else store.lock(run.path, self.say)

    @contextlib.contextmanager
    def at_work(self, run: Path, resumed: Path, interrupted: "Stop", until: str = "") -> "Iterator[Dispatcher]":
        """A dispatcher for a run, its progress shown; errors say how to continue with `resumed`, it or its repeats."""
        from bcl.api import console

        RunDirectory(run).check_unchanged()  # its refusals are to have no hint to continue
        finished = RunDirectory(run).finished
        note = f"on_row raised this; what was trained is kept, {self._continue_with(resumed)}"
        try:
            others = [one.path for one in Repeats(resumed).runs() if one.path != run]
            with console.live(run, self.progress, self.as_command, self.on_row, note, others) as view:
                dispatcher = self.workers.dispatcher(interrupted, view.tick, self.say)
                if not finished:
                    self.say(f"run: {run}{until}")
                yield dispatcher
                if finished:
                    self.say(f"'{run}' is finished")
        except TrainingError as error:
            again = f"'{self._resume(resumed)}' goes back to the last checkpoint; if that ends here again, {error.hint}"
            raise TrainingError(error.message, again) from None
        except ConfigError:
            raise  # the same settings will fail again
        except BclError as error:
            if not finished:  # a finished one is only read: again it would be refused again
                error.hint = "; ".join(filter(None, (error.hint, self._continue_with(resumed))))
            raise

    def _resume(self, run: Path) -> str:
        return shlex.join(["bcl", "resume", str(run), *self.workers.options()])

    def _continue_with(self, run: Path) -> str:
        return f"continue with: {self._resume(run)}"


def _resume_warning(run: RunDirectory) -> str:
    """A warning where a resumed run differs from an uninterrupted one; else empty."""
    stage = run.stages()[-1]
    section = "distill" if stage.loss == "distill" else stage.config.algo
    learner = stage.config.learner(stage.loss)
    needed = [name for name in ("checkpoint_steps", "checkpoint_replay") if hasattr(learner, name)]
    unset = " and ".join(f"--{section}.{name}" for name in needed if not getattr(learner, name))
    return f"; without {unset} it ends with other weights than if it had not been stopped" if unset else ""


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
    repeats: Count = 1,
    workers: Workers = ALONE,
    say: Say = lambda line: None,
    progress: bool | None = None,
    on_row: OnRow | None = None,
    as_command: bool = False,
    **settings: Any,
) -> Run:
    """Train an agent, or continue a run with the same settings. Any setting can be given as --section.key value; `bcl
    presets GAME` prints them all with help.

    In Python, settings are given by section, as in a configuration file: `curriculum={"runs": 2}` is `--curriculum.runs
    2`. `say=print` shows a line for every stage and phase, `progress` bars (by default in terminals and notebooks);
    `on_row` is called with the folder of a training run and each row of its metrics; what it raises ends the work, and
    `bcl.resume` goes on. With `as_command`, Ctrl-C lets the run keep a checkpoint first, and lines are printed where
    there are no bars. The result of `repeats` is a `RepeatedRun`.

    Args:
        game: A preset (`bcl presets`), an Atari or Procgen game, or a Gymnasium id.
        recipe: A row of the paper's tables (`bcl presets` lists them), or a TOML file; by default vanilla.
        out: Run directory; by default runs/GAME-RECIPE-sSEED.
        seed: Root of every random draw (0).
        size: small: a quick look; the result is not the paper's protocol.
        init: A policy file, a run or an agent of `bcl zoo` to start from, in place of the stages before the recipe's
            own.
        config: A TOML file of settings: it overrides the preset, options override it.
        repeats: How many whole runs to train, with this seed and the following ones, each in a folder of its own.
    """
    _refuse_options("train", settings)
    check(train, locals())
    finisher = Finisher(workers, say, progress, on_row, as_command)
    name = _name(game, workers)
    if recipe is not None:
        text("recipe", recipe, "give its name, such as 'at'")
    start = _agent(init)
    file = None if config is None else path_of("config", config)
    if file:
        take_recipes(file)
    own = settings | {key: value for key, value in (("seed", seed), ("size", size)) if value is not None}
    with contextlib.nullcontext() if as_command else _hints_for_python():
        stages = resolve_stages(name, recipe=recipe, file=file, settings=own, agent=_decided_by(start))
    _refuse_beside(workers, [stage.strategy for stage, _ in stages])
    last = stages[-1][1]
    usual = Path("runs") / f"{name}-{last.recipe}-s{last.seed}".replace("/", "-")
    folder = usual if out is None else path_of("out", out)
    each = _seeded(stages, repeats)
    begun = _check(folder, each, own, start)
    from bcl import experiment  # after all that can be refused without PyTorch

    device = workers.worker_device()
    if not begun:
        experiment.check(stages, device if workers.local else "cpu", start, workers.trackers())
    if last.size == "small":
        say(A_QUICK_LOOK)
    if callable(game) and ":" not in name:
        say(KNOWN_HERE)
    if (preset := preset_for(last.game)) not in (None, name):
        say(f"{name} has a preset: its settings are those of '{preset}'")
    if rom := atari_name(last.game):
        say(f"{name} is played on whole frames in colour; 'bcl train {rom}' plays it as the paper does, and faster")
    with store.lock(folder, say):
        if not begun and repeats > 1:
            _create_repeats(folder, each, device, start)
        elif not begun:
            experiment.create(folder, stages, device, start)
        with finisher.stoppable(folder) as interrupted:
            if repeats > 1:
                return finisher.finish_repeats(folder, interrupted)
            with finisher.at_work(folder, folder, interrupted) as dispatcher:
                return Run(folder, experiment.finish(folder, dispatcher))


def _seeded(stages: Stages, repeats: int) -> list[Stages]:
    """The stages of each repeat: with their own seed and the following ones."""
    first = stages[-1][1].seed
    return [
        [(stage, dataclasses.replace(config, seed=seed)) for stage, config in stages]
        for seed in range(first, first + repeats)
    ]


def _create_repeats(group: Path, repeats: list[Stages], device: str, init: Policy | None) -> None:
    from bcl import experiment

    make_room(group)
    folders = [Repeats(group).folder(stages[-1][1].seed) for stages in repeats]
    for folder, stages in zip(folders, repeats, strict=True):
        experiment.create(folder, stages, device, init)
    Repeats(group).write([folder.name for folder in folders])


def resume(
    folder: Where,
    *,
    workers: Workers = ALONE,
    say: Say = lambda line: None,
    progress: bool | None = None,
    on_row: OnRow | None = None,
    as_command: bool = False,
    **settings: Any,
) -> Run:
    """Continue a run after a kill or Ctrl-C, under the settings it was started with; a finished one is only read.

    `say`, `progress`, `on_row` and `as_command` are those of `bcl.train`. Settings other than the run's are refused.

    Args:
        folder: The run directory, or that of its repeats.
    """
    _refuse_options("resume", settings)
    check(resume, locals())
    finisher = Finisher(workers, say, progress, on_row, as_command)
    path = path_of("folder", folder)
    run = RunDirectory(path)
    for one in runs_of(path):
        RunDirectory.open(one.path).check_settings(settings)
        _refuse_beside(workers, [stage.strategy for stage in one.stages()])
    from bcl import experiment

    with contextlib.ExitStack() as held:
        # What is finished is only read, from wherever it lies. Finished repeats may have one that is not: somebody
        # deleted its result to have it made again.
        if not (run.finished and all(one.finished for one in runs_of(path))):
            held.enter_context(store.lock(path, say))
            if run.repeats:  # a repeat is not resumed while all of them are
                held.enter_context(store.lock(run.repeats.path))
        interrupted = held.enter_context(finisher.stoppable(path))
        if Repeats(path).exists:
            return finisher.finish_repeats(path, interrupted)
        with finisher.at_work(path, path, interrupted) as dispatcher:
            return Run(path, experiment.finish(path, dispatcher))


def _refuse_options(verb: str, settings: Mapping[str, Any]) -> None:
    """Options of the command that are fields of `workers` here."""
    for field in dataclasses.fields(Workers):
        if field.name in settings:
            hint = f"give workers=bcl.Workers({field.name}=...)"
            raise ConfigError(f"'{field.name}' is not an argument of bcl.{verb}", hint)


@contextlib.contextmanager
def _hints_for_python() -> Iterator[None]:
    """Hints name settings as they are given here."""
    try:
        yield
    except ConfigError as error:
        error.hint = re.sub(r"--(\w+)\.(\w+)( VALUE)?", r'\1={"\2": ...}', error.hint)
        raise


def _refuse_beside(workers: Workers, strategies: Sequence[str]) -> None:
    if workers.judge_beside == "on" and {*strategies} <= {*recipes.ONE_RUN}:
        hint = "leave it out, or take a recipe with phases, such as --recipe bcl-mos-at"
        raise ConfigError("--judge-beside on changes nothing, no stage has phases", hint)


def _name(game: str | Callable[..., Any], workers: Workers) -> str:
    name = named_game(game)
    elsewhere = not workers.local or workers.parallel > 1 or workers.judge_beside == "on"
    if callable(game) and ":" not in name and elsewhere:
        raise ConfigError(f"other processes cannot import '{name}'", "put it into a module of its own")
    return name


def _check(folder: Path, repeats: list[Stages], settings: Mapping[str, Any], init: Policy | None) -> bool:
    """Whether the folder holds this run or these repeats; refuses anything else that cannot be trained there."""
    stage, config = repeats[0][-1]
    if str(folder).startswith(zoo.PREFIX):
        raise ConfigError(f"--out '{folder}' would be taken for an agent of the zoo", "give it another name")
    if stage.strategy == "open" and "target" in settings.get("curriculum", {}):
        what = "an open-ended curriculum has no target"
        raise ConfigError(what, "leave --curriculum.target out, or stop it with --curriculum.max_runs")
    recipes.check_trainable(config.recipe, config.algo)
    begun = Repeats(folder).runs()
    if begun and len(begun) != len(repeats):
        hint = f"continue them with 'bcl resume {shlex.quote(str(folder))}', or give another --out"
        raise StoreError(f"'{folder}' is a run already, of {len(begun)} repeats", hint)
    if not begun and not RunDirectory(folder).exists:
        check_new(folder)
        return False
    if not begun and len(repeats) > 1:
        raise StoreError(f"'{folder}' is a run already, without repeats", "give another --out")
    given_init = None
    if init is not None:
        from bcl.policies.files import fingerprint

        given_init = fingerprint(init)
    for run, stages in zip(begun or [RunDirectory.open(folder)], repeats, strict=True):
        run.check_same(stages[-1][1], given_init)
    return True


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
    """Settings that the agent to start from decides."""
    if agent is None:
        return {}
    layers = {"network": {"hidden": agent.spec.hidden}} if agent.spec.hidden else {}
    return {"algo": agent.spec.algo, **layers}
