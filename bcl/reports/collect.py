"""Reads the files of a run, or of a policy and its results, into the data of a report."""

import dataclasses
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import bcl
from bcl import zoo
from bcl.attacks import Attack
from bcl.attacks.suites import SUITES, suite
from bcl.config import Config, evaluation_defaults, preset_for, resolve_stages
from bcl.errors import WeightsError, counted
from bcl.evaluation import Evaluation, Score, Start, read_evaluations
from bcl.evaluation.breaking import Breaking, read_breaking
from bcl.evaluation.certify import Certificate, read_certificates
from bcl.evaluation.evaluation import ordered
from bcl.evaluation.flags import WORSE_THAN_START, flags, worse_than_start
from bcl.evaluation.plan import levels_of
from bcl.experiment.run import commit_here
from bcl.experiment.status import incumbent, status
from bcl.experiment.verdict import Verdict, under_attack
from bcl.games import AtariGame, Game
from bcl.policies import Policy, files
from bcl.policies.files import fingerprint, is_policy, load
from bcl.reports.history import Timeline, read_timeline
from bcl.reports.published import PublishedRow, result_for
from bcl.runs import store
from bcl.runs.directory import Agent, Repeats, RunDirectory
from bcl.runs.results import Flag, Results
from bcl.settings import difference, format_return, setting_line

if TYPE_CHECKING:
    from bcl.reports.frames import Frames

MADE_BY = ("report made by", f"bcl {bcl.__version__}")
OWN = "the run's own verdict"
LATER = "evaluated afterwards"
CHOOSING = "the episodes that agents are chosen by, so that the best of several looks better than it is"


@dataclass(frozen=True)
class Proof(Certificate):
    """A certificate as a report shows it."""

    levels: str = ""
    """Procgen: `train` or `eval`."""
    whose: str = ""
    """Empty: the agent's."""


@dataclass(frozen=True)
class Collected:
    """A whole report as data."""

    title: str
    source: str
    """The path that was given."""
    agent: str
    """The run or file that commands about its agent take; of repeats the one that is shown."""
    state: Literal["finished", "at work", "stopped", "policy"]
    """`policy`: a bare policy file."""
    clauses: tuple[str, ...]
    """The verdict: first the agent and its returns, then what else to know."""
    evaluations: tuple[Evaluation, ...]
    """The one to look at first; then others of the same agent."""
    proofs: tuple[Proof, ...]
    provenance: tuple[tuple[str, str], ...]
    progress: tuple[str, ...] = ()
    """Of an unfinished run: what is done, what is under way."""
    published: PublishedRow | None = None
    """The paper's row of this recipe on this game."""
    timeline: Timeline | None = None
    frames: "Frames | None" = None
    about: tuple[tuple[str, str], ...] = ()
    """Recipe, learner, seed and the like."""
    settings: tuple[tuple[str, str, str, str], ...] = ()
    """Those that differ from the preset's: stage, name, value here, value there."""
    repeats: tuple[tuple[str, float | None, bool], ...] = ()
    """Of several whole runs: name, final score (none: not finished), whether it is the one shown."""
    started_with: str = ""
    """The version that the run was started with, where this one is another."""
    breaking: tuple[Breaking, ...] = ()
    """What searches for the smallest budget that breaks the agent found, the latest first."""

    @property
    def further_flags(self) -> list[Flag]:
        """See `Evaluation.further_flags`, of the first one."""
        return self.evaluations[0].further_flags(self.evaluations[1:]) if self.evaluations else []

    @property
    def verdict(self) -> str:
        """In one sentence."""
        return "; ".join(self.clauses)

    @property
    def lower_elsewhere(self) -> list[str]:
        """See `Evaluation.lower_elsewhere`, of the first one."""
        return self.evaluations[0].lower_elsewhere(self.evaluations[1:]) if self.evaluations else []


def collect(path: Path) -> Collected:
    """What a report says of a run directory, a directory of repeats, or a policy file."""
    if is_policy(path):
        return _of_policy(path)
    return _of_run(RunDirectory(shown_run(path)), path)


def shown_run(path: Path) -> Path:
    """The run itself; of repeats the median, or before all are finished the first that is not."""
    repeats = Repeats(path)
    return repeats.shown().path if repeats.runs() else path


def agent_file(path: Path) -> Path | None:
    """The policy a report is about; none before a run has its best."""
    if is_policy(path):
        return path
    run = RunDirectory(shown_run(path))
    return run.best if run.finished and store.exists(run.best) else None


def results_of(path: Path) -> Results:
    """Of the agent that a report is about."""
    return files.results_of(path) if is_policy(path) else RunDirectory(shown_run(path)).results


def load_with_game(file: Path) -> tuple[Policy, Game]:
    """A policy file's agent and the game that it plays."""
    policy = load(file)
    if policy.spec.game is None:
        raise WeightsError(f"'{file}' does not say which game it plays", "save it with a game in its spec")
    return policy, policy.spec.game


def results_of_policy(file: Path, policy: Policy) -> list[tuple[Results, str]]:
    """Its results, each with its player's fingerprint; an agent of the zoo was published with some."""
    found = [(files.results_of(file), fingerprint(policy))]
    if agent := zoo.find(file):
        found.append((agent.results, agent.judged))
    return found


def read_results(results: Iterable[tuple[Results, str]]) -> list[Evaluation]:
    """The evaluations among results, each of these with the fingerprint of its agent."""
    return [one for found, policy in results for one in read_evaluations(found.scores, policy)]


def report_file(path: Path) -> Path:
    return (RunDirectory(path).results if path.is_dir() else results_of(path)).report


def _of_run(run: RunDirectory, source: Path) -> Collected:
    now = status(run.path)
    config = now.config
    policy = run.fingerprint
    verdict = Verdict.read(run) if run.finished else None
    if verdict:
        usual = evaluation_defaults(config.game).episodes
        # The budget that training happened to reach may lie beyond those that agents are evaluated at; others need not
        # have it.
        asked = {eps for eps in verdict.evaluation.budgets if eps} & {*config.evaluation.eps}
        found = _with_verdict(read_results([(run.results, policy)]), verdict.evaluations)
        found = _ranked(found, usual, asked)
        found = beside_the_starts(found, verdict, run.began_from(policy))
        clauses = [*_shown(verdict, *found).clauses(config), *_few_episodes(found[0], usual)]
    else:
        found = _so_far(run)
        best = incumbent(run.path)
        clauses = [f"{config.recipe} on {config.game.id} is not finished", *([f"best so far: {best}"] if best else [])]
    under_way = [f"{p.name}: {p.doing}, {p.done:,} of {p.of:,}" for p in now.pieces]
    about = {
        "recipe": config.recipe,
        "game": config.game.id,
        "learner": config.algo,
        "bootstrap": config.bootstrap,
        "seed": str(config.seed),
        "size": config.size,
    }
    return Collected(
        title=f"{config.recipe} on {config.game.id}",
        source=str(source),
        agent=str(run.path),
        state=now.state,
        clauses=tuple(clauses),
        progress=() if verdict else (*now.lines, *under_way),
        evaluations=tuple(found),
        published=result_for(config, found[0].levels if found else levels_of(config.game)),
        timeline=read_timeline(run.path),
        proofs=_proofs_of_run(run, policy) if verdict else (),
        about=tuple(about.items()),
        settings=tuple(_settings(run, config)),
        provenance=tuple(_provenance(run)),
        repeats=tuple(_repeats(source, run)),
        started_with=_started_with(run),
        breaking=_searches(run.results, policy) if verdict else (),
    )


def _of_policy(file: Path) -> Collected:
    policy, game = load_with_game(file)
    identity = fingerprint(policy)
    usual = evaluation_defaults(game).episodes
    results = results_of_policy(file, policy)
    found = _ranked([flagged(one, LATER) for one in read_results(results)], usual, set())
    title = f"{file.name} on {game.id}"
    run = RunDirectory(file.parent.parent)
    if found and (nominal := found[0].nominal):
        clauses = [f"{title}: return {format_return(nominal.mean)} without attack"]
        if found[0].attacks:
            clauses[0] += f"; {under_attack(found[0].scores, max(found[0].budgets))}"
        clauses += _few_episodes(found[0], usual)
    elif file == run.best and run.finished:
        report = f"bcl report {shlex.quote(str(run.path))}"
        clauses = [f"{title} is the agent of {run.path}", f"'{report}' tells how it was evaluated"]
    else:
        clauses = [f"{title} has not been evaluated yet"]
    about = {"policy": identity, "made from": policy.spec.parent, "network": policy.spec.kind}
    if agent := zoo.find(file):
        about |= {"command": agent.command, "commit": agent.commit, "results played by": agent.judged}
        about |= {"trained on": f"{agent.machine}, {agent.minutes:g} min", "notes": agent.notes}
    return Collected(
        title=title,
        source=str(file),
        agent=str(file),
        state="policy",
        clauses=tuple(clauses),
        evaluations=tuple(found),
        proofs=tuple(proof for one in results for proof in _proofs(*one)),
        provenance=(*((k, v) for k, v in about.items() if v), MADE_BY),
        breaking=tuple(search for one in results for search in _searches(*one)),
    )


def _with_verdict(played: Sequence[Evaluation], own: Iterable[Evaluation]) -> list[Evaluation]:
    """The verdict's `own`, whole even where files are gone, with later scores under equal conditions; then others."""
    found = []
    later = [*played]
    for one in own:
        same = [e for e in later if e.levels == one.levels and any(score in one.scores for score in e.scores)]
        later = [e for e in later if not any(e is other for other in same)]
        scores = ordered(score for e in (one, *same) for score in e.scores)
        found.append(flagged(dataclasses.replace(same[0] if same else one, scores=scores, flags=one.flags), OWN))
    return found + [flagged(e, LATER) for e in later]


def _ranked(found: Sequence[Evaluation], usual: int, asked: set[float]) -> list[Evaluation]:
    """Best first. A run's own verdict is the best, unless a later evaluation has no fewer episodes and, at every budget
    asked, more attacks or a stronger suite."""
    own = next((e for e in found if e.note == OWN), None)
    known = _thorough(own, asked) if own else set()

    def place(e: Evaluation) -> tuple[int, ...]:
        attacks = _thorough(e, asked)
        stronger = attacks > known or _suite_held(attacks) > _suite_held(known)
        standing = 1 if e.note == OWN else 2 if own and e.episodes >= own.episodes and stronger else 0
        training_levels = e.levels != "eval"  # of equals they come first
        thorough = _suite_held(attacks), len(attacks), len(e.scores)
        return standing, e.episodes >= usual, *thorough, training_levels, e.episodes

    return sorted(found, key=place, reverse=True)


def _thorough(e: Evaluation, asked: set[float]) -> set[Attack]:
    """The attacks that were played at every budget asked."""
    return {attack for attack in e.attacks if all((attack, eps) in e.cells for eps in asked)}


def _suite_held(attacks: set[Attack]) -> int:
    """The place of the strongest suite whose attacks are all there, from 1; 0: of none."""
    return max((n for n, name in enumerate(SUITES, 1) if {*suite(name)} <= attacks), default=0)


def _few_episodes(first: Evaluation, usual: int) -> list[str]:
    """What to add to a verdict where there are fewer episodes than usual."""
    return [f"{counted(first.episodes, 'episode')} instead of {usual}"] if first.episodes < usual else []


def flagged(evaluation: Evaluation, note: str) -> Evaluation:
    """With all its flags, after those that are known."""
    raised = dict.fromkeys([*evaluation.flags, *flags(evaluation.scores)])
    return dataclasses.replace(evaluation, flags=tuple(raised), note=note)


def beside_the_starts(
    found: Iterable[Evaluation], verdict: Verdict, began_from: Iterable[tuple[str, Agent]]
) -> list[Evaluation]:
    """With the scores of each agent that training began from, where it played all of these on the same episodes."""
    found = [dataclasses.replace(one, began_from=()) for one in found]
    for name, agent in began_from:
        played = read_evaluations(agent.results.scores, agent.fingerprint)
        # Those of the verdict too: their files may be gone.
        for own in verdict.evaluations:
            played += [Evaluation(own.game, one.scores) for one in own.began_from if one.name == name]
        found = [_compared(one, played, name, str(agent.file)) for one in found]
    return found


def _compared(e: Evaluation, played: Iterable[Evaluation], name: str, file: str) -> Evaluation:
    for other in played:
        theirs = [other.cells.get((s.attack, s.eps)) for s in e.scores]
        start = [s for s in theirs if s and _episodes(s) == _episodes(e.scores[0])]
        if other.levels == e.levels and len(start) == len(e.scores):
            raised = dict.fromkeys([*e.flags, *worse_than_start(e.scores, start, file)])
            starts = (*e.began_from, Start(name, file, start))
            return dataclasses.replace(e, began_from=starts, flags=tuple(raised))
    return e


def _episodes(score: Score) -> tuple[object, ...]:
    return score.seed, len(score.returns), score.protocol, score.precision, bool(score.prefixes)


def _shown(verdict: Verdict, first: Evaluation, *later: Evaluation) -> Verdict:
    """The verdict by the evaluation that comes first, and what others have against it."""
    if not first.nominal:
        return verdict
    others = [flag for flag in verdict.evaluation.flags if flag.name != WORSE_THAN_START]
    known = (*first.flags, *first.further_flags(later))
    raised = [flag for flag in known if flag.name == WORSE_THAN_START]
    return dataclasses.replace(verdict, evaluation=dataclasses.replace(first, flags=(*others, *raised)))


def _so_far(run: RunDirectory) -> list[Evaluation]:
    """Of an unfinished run: the scores by which the best agent so far was chosen."""
    for stage in reversed(run.stages()):
        if stage.strategy != "none" and (made := stage.decisions()):
            best = stage.kept_by(made[-1].decision.best_phase)
            most = stage.config.evaluation.max_steps
            return [flagged(one, _choosing(one.game, most)) for one in read_evaluations(best.results.scores, "")][:1]
    return []


def _choosing(game: Game, most: int) -> str:
    """Where scores come from by which agents are chosen; `most`: agent steps of episodes that are reported."""
    if isinstance(game, AtariGame) and game.max_steps < most:
        return f"{CHOOSING}, cut off at {game.max_steps:,} agent steps"
    return CHOOSING


def _proofs_of_run(run: RunDirectory, policy: str) -> tuple[Proof, ...]:
    """With what `bcl certify` proved about the policy files that training began from."""
    found = _proofs(run.results, policy)
    for name, agent in run.began_from(policy):
        found += _proofs(files.results_of(agent.file), agent.fingerprint, f"start ({name})")
    return tuple(found)


def _proofs(results: Results, policy: str, whose: str = "") -> list[Proof]:
    """Certificates of an agent, with the greedy worst case for people."""
    proofs = []
    for conditions, proof in read_certificates(results.certificates, policy):
        facts = proof.to_dict() | {"gwc": proof.at_worst}
        proofs.append(Proof(**facts, levels=levels_of(conditions.plan.game), whose=whose))
    return sorted(proofs, key=lambda p: (p.levels, p.method, p.seed, p.episodes, p.eps))


def _searches(results: Results, policy: str) -> tuple[Breaking, ...]:
    return tuple(reversed(read_breaking(results, policy)))


def _settings(run: RunDirectory, config: Config) -> Iterator[tuple[str, str, str, str]]:
    """Settings of every stage that are not as the preset and the recipe have them."""
    same = {name: getattr(config, name) for name in ("algo", "bootstrap", "tempo", "size", "seed")}
    name = preset_for(config.game)
    if not name and run.stages()[-1].loss != "standard":  # without a preset the game's own id has no target
        same["curriculum"] = {"target": config.curriculum.target}
    preset = resolve_stages(name or config.game.id, recipe=config.recipe, settings=same, known=config.game)
    learner = "dqn." if config.algo == "ppo" else "ppo."
    for stage in run.stages():
        own = stage.config
        usual = preset[stage.number - 1][1]
        for key in difference(usual, own):
            if not key.startswith(learner):  # the learner not in use
                here, there = (setting_line(c, key).partition(" = ")[2] for c in (own, usual))
                yield stage.path.name, key, here, there


def _started_with(run: RunDirectory) -> str:
    """The version that a run was started with; empty where it is the installed one."""
    here = commit_here()
    version = run.provenance.version
    commit = run.provenance.commit
    if version == bcl.__version__ and (commit == here or not (commit and here)):
        return ""
    return f"bcl {version}" + (f", commit {commit}" if commit else "")


def _provenance(run: RunDirectory) -> Iterator[tuple[str, str]]:
    about = run.provenance
    facts = {
        "command": about.command,
        "version": about.version,
        "commit": about.commit,
        "started": about.date,
        "trained on": about.worker_device,
        "started from": about.init,
        **about.machine,
        "policy": run.fingerprint or None,
    }
    yield from ((name, str(value)) for name, value in facts.items() if value is not None)
    yield MADE_BY


def _repeats(path: Path, shown: RunDirectory) -> Iterator[tuple[str, float | None, bool]]:
    for run in Repeats(path).runs():
        yield run.path.name, run.final_score, run == shown
