"""Files of a run, or of a policy and its results, to the data of a report. Reads; writes and draws nothing."""

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import bcl
from bcl import zoo
from bcl.attacks import Attack
from bcl.attacks.suites import SUITES, suite
from bcl.config import Config, evaluation_defaults, preset_for, resolve_stages
from bcl.errors import StoreError, WeightsError, counted
from bcl.evaluation import (
    Evaluation,
    Flag,
    Score,
    Start,
    flags,
    read_breaking,
    read_certificates,
    read_evaluations,
    worse_than_start,
)
from bcl.evaluation.breaking import BREAKING
from bcl.evaluation.evaluation import levels_of, ordered
from bcl.evaluation.flags import WORSE_THAN_START
from bcl.experiment.run import (
    commit_here,
)
from bcl.experiment.status import incumbent, status
from bcl.experiment.verdict import Verdict, under_attack
from bcl.policies import Policy, files
from bcl.policies.files import fingerprint, is_policy, load
from bcl.reports.data import Collected, Frames, Proof, Published, Repeat, Setting
from bcl.reports.history import read_timeline
from bcl.reports.published import results, row_for
from bcl.runs.directory import CERTS, EVALS, Agent, Repeats, RunDirectory
from bcl.settings import difference, setting_line

OWN, LATER = "the run's own verdict", "evaluated afterwards"
CHOOSING = "the episodes that agents are chosen by, so that the best of several looks better than it is"


def collect(path: Path, frames: Frames | None = None) -> Collected:
    """All that can be told of a run directory, a directory of repeats, or a policy file."""
    if is_policy(path):
        return _of_policy(path, frames)
    if not path.exists():
        raise StoreError(f"'{path}' does not exist", "give a run directory or a policy file")
    return _of_run(RunDirectory(shown_run(path)), path, frames)


def shown_run(path: Path) -> Path:
    """The run itself; of repeats the median, or before all are finished the first that is not."""
    repeats = Repeats(path)
    return repeats.shown().path if repeats.runs() else path


def agent_file(path: Path) -> Path | None:
    """The policy a report is about; none before a run has its best."""
    if is_policy(path):
        return path
    run = RunDirectory(shown_run(path))
    return run.best if run.finished and run.best.exists() else None


def results_folder(path: Path) -> Path:
    """Where results of its agent go: into the run, or where those of the policy file do."""
    return files.results_folder(path) if is_policy(path) else shown_run(path)


def judged_policy(file: Path, policy: Policy) -> list[tuple[Path, str]]:
    """The folders of results of a policy file, each with the fingerprint of who played them: those made here, and those
    that an agent of the zoo was published with."""
    agent, own = zoo.find(file), (files.results_folder(file), fingerprint(policy))
    return [own, (agent.folder, agent.judged)] if agent else [own]


def report_file(path: Path) -> Path:
    return RunDirectory(path if path.is_dir() else results_folder(path)).report


def _of_run(run: RunDirectory, source: Path, frames: Frames | None) -> Collected:
    now = status(run.path)
    config = now.config
    start = run.start()
    if verdict := Verdict.read(run):
        policy = str(run.result().get("policy"))
        usual = evaluation_defaults(config.game).episodes
        found = _evaluations(read_evaluations(run.evals, policy), usual, verdict, config)
        if start:
            found = _beside_the_start(run, found, verdict, *start)
        sentence = _shown(verdict, found[0], start).sentence(config) + _few_episodes(found[0], usual)
        proofs = (*_proofs(run.certs, policy), *_proofs_of_start(start, policy))
    else:
        found = _so_far(run)
        best = incumbent(run.path)
        sentence = f"{config.recipe} on {config.game.id} is not finished" + (f"; best so far: {best}" if best else "")
        proofs = ()
    under_way = [f"{p.name}: {p.doing}, {p.done:,} of {p.of:,}" for p in now.pieces]
    return Collected(
        title=f"{config.recipe} on {config.game.id}",
        source=str(source),
        agent=str(run.path),
        state=now.state,
        verdict=sentence,
        progress=() if verdict else (*now.lines, *under_way),
        evaluations=tuple(found),
        published=_published(config, found[0].levels if found else levels_of(config.game)),
        timeline=read_timeline(run.path),
        proofs=proofs,
        frames=frames,
        about=_about(config),
        settings=tuple(_settings(run, config)),
        provenance=tuple(_provenance(run)),
        repeats=_repeats(source, run),
        started_with=_started_with(run),
        start=start[0] if start else "",
        breaking=read_breaking(run.breaking, policy) if verdict else None,
    )


def _of_policy(file: Path, frames: Frames | None) -> Collected:
    policy = load(file)
    game, identity = policy.spec.game, fingerprint(policy)
    if game is None:
        raise WeightsError(f"'{file}' does not say which game it plays", "save it with a game in its spec")
    usual, results = evaluation_defaults(game).episodes, judged_policy(file, policy)
    found = _evaluations([one for folder, who in results for one in read_evaluations(folder / EVALS, who)], usual)
    sentence = f"{file.name} on {game.id} has not been evaluated yet"
    run = RunDirectory(file.parent.parent)
    if file == run.best and run.finished:
        sentence = (
            f"{file.name} on {game.id} is the agent of {run.path}; 'bcl report {run.path}' tells how it was evaluated"
        )
    if found and (nominal := found[0].nominal):
        words = [f"{file.name} on {game.id}: return {nominal.mean:.4g} without attack"]
        words += [under_attack(found[0].scores, max(found[0].budgets))] if found[0].attacks else []
        sentence = "; ".join(words) + _few_episodes(found[0], usual)
    about = {"policy": identity, "made from": policy.spec.parent, "network": policy.spec.kind}
    if agent := zoo.find(file):
        about |= {"command": agent.command, "commit": agent.commit, "results played by": agent.judged}
        about |= {"trained on": f"{agent.gpu}, {agent.gpu_minutes:g} min", "notes": agent.notes}
    return Collected(
        title=f"{file.name} on {game.id}",
        source=str(file),
        agent=str(file),
        state="policy",
        verdict=sentence,
        progress=(),
        evaluations=tuple(found),
        published=(),
        timeline=None,
        proofs=tuple(proof for folder, who in results for proof in _proofs(folder / CERTS, who)),
        frames=frames,
        about=(),
        settings=(),
        provenance=(*((k, v) for k, v in about.items() if v), ("report made by", f"bcl {bcl.__version__}")),
        repeats=(),
        breaking=read_breaking(files.results_folder(file) / BREAKING, identity),
    )


def _evaluations(
    played: Iterable[Evaluation], usual: int, verdict: Verdict | None = None, config: Config | None = None
) -> list[Evaluation]:
    """What was played with this agent, the one to look at first in front: of a run its own verdict, unless a later
    evaluation outdoes it."""
    found = []
    for judged in played:
        mine = verdict is not None and any(score in verdict.scores for score in judged.scores)
        beside = verdict is not None and any(score in verdict.unlimited for score in judged.scores)
        if verdict and mine:  # all of them, though files of some may be gone
            judged = dataclasses.replace(judged, scores=ordered([*verdict.scores, *judged.scores]))
        note = OWN if mine or beside else LATER
        found.append(_flagged(judged, note, verdict.flags if verdict and mine else ()))
    found.sort(key=lambda e: e.levels == "eval")  # of equals, the levels of training come first
    if verdict and config and not any(e.note == OWN for e in found):  # its files are gone, or were never handed on
        kept = tuple(map(Flag.from_text, verdict.flags))
        found.append(Evaluation(config.game, ordered(verdict.scores), flags=kept, note=OWN))

    # The budget that training happened to reach may lie beyond those that agents are judged at; others need not have it.
    asked = {s.eps for s in verdict.scores if s.eps > 0} & {*config.evaluation.eps} if verdict and config else set()

    own = next((e for e in found if e.note == OWN), None)

    def place(e: Evaluation) -> tuple[int, ...]:
        attacks = _thorough(e, asked)
        standing = 1 if e.note == OWN else 2 if own and _outdoes(e, own, asked) else 0
        return standing, e.episodes >= usual, _suite_held(attacks), len(attacks), len(e.scores)

    return sorted(found, key=place, reverse=True)


def _outdoes(later: Evaluation, own: Evaluation, asked: set[float]) -> bool:
    """Whether an evaluation may stand for the run's own verdict: no fewer episodes, and at every budget asked its attacks
    and more, or a stronger suite. Many weak attacks on few episodes may not."""
    attacks, known = _thorough(later, asked), _thorough(own, asked)
    return later.episodes >= own.episodes and (attacks > known or _suite_held(attacks) > _suite_held(known))


def _thorough(e: Evaluation, asked: set[float]) -> set[Attack]:
    """The attacks that were played at every budget asked."""
    return {attack for attack in e.attacks if all((attack, eps) in e.cells for eps in asked)}


def _suite_held(attacks: set[Attack]) -> int:
    """The place of the strongest suite whose attacks are all there, from 1; 0: of none."""
    return max((n for n, name in enumerate(SUITES, 1) if {*suite(name)} <= attacks), default=0)


def _few_episodes(first: Evaluation, usual: int) -> str:
    """The words to add to a sentence about fewer episodes than usual; else none."""
    return f"; {counted(first.episodes, 'episode')} instead of {usual}" if first.episodes < usual else ""


def _flagged(judged: Evaluation, note: str, known: Iterable[str] = ()) -> Evaluation:
    """With its flags, after those that are `known`."""
    raised = dict.fromkeys([*map(Flag.from_text, known), *flags(judged.scores)])
    return dataclasses.replace(judged, flags=tuple(raised), note=note)


def _beside_the_start(
    run: RunDirectory, found: list[Evaluation], verdict: Verdict, name: str, start: Agent
) -> list[Evaluation]:
    """Each with the scores of the agent that training began from and what these say, where all its cells were played with
    that agent on the same episodes."""
    played = read_evaluations(start.evals, start.fingerprint)
    if verdict.start and verdict.start.scores:  # though its files may be gone
        played.append(Evaluation(run.config.game, verdict.start.scores))
    return [_compared(one, played, name, start.file.relative_to(run.path).as_posix()) for one in found]


def _compared(e: Evaluation, played: Iterable[Evaluation], name: str, file: str) -> Evaluation:
    for other in played:
        theirs = [other.cells.get((s.attack, s.eps)) for s in e.scores]
        start = [s for s in theirs if s and _episodes(s) == _episodes(e.scores[0])]
        if other.levels == e.levels and len(start) == len(e.scores):
            raised = dict.fromkeys([*e.flags, *worse_than_start(e.scores, start, file)])
            return dataclasses.replace(e, start=Start(name, file, start, []), flags=tuple(raised))
    return e


def _episodes(score: Score) -> tuple[object, ...]:
    return score.seed, len(score.returns), score.protocol, score.precision


def _shown(verdict: Verdict, first: Evaluation, start: tuple[str, Agent] | None) -> Verdict:
    """The verdict by the evaluation that comes first."""
    if not first.nominal:
        return verdict
    others = [flag for flag in verdict.flags if not flag.startswith(WORSE_THAN_START)]
    raised = [str(flag) for flag in first.flags if flag.name == WORSE_THAN_START]
    began = first.start or Start(start[0] if start else "", "", [], [])
    return dataclasses.replace(verdict, scores=list(first.scores), flags=others + raised, start=began)


def _so_far(run: RunDirectory) -> list[Evaluation]:
    """Of an unfinished run: the scores by which the best agent so far was chosen."""
    for stage in reversed(run.stages()):
        if stage.strategy != "none" and (made := stage.decisions()):
            best = stage.kept_by(made[-1].decision.best_phase)
            return [_flagged(played, CHOOSING) for played in read_evaluations(best.evals, "")][:1]
    return []


def _published(config: Config, levels: str) -> tuple[Published, ...]:
    """The paper's row of this recipe on this game and levels, by budget; empty where it has none."""
    row = row_for([row for row in results(config.game.id) if row.levels == levels], config)
    return tuple(map(Published, row.eps, row.mean, row.sem)) if row else ()


def _proofs_of_start(start: tuple[str, Agent] | None, policy: str) -> Iterator[Proof]:
    """What `bcl certify` proved about the policy file that training began from."""
    if start and start[1].fingerprint != policy:
        name, agent = start
        for proof in _proofs(files.results_folder(agent.file) / CERTS, agent.fingerprint):
            yield dataclasses.replace(proof, whose=f"start ({name})")


def _proofs(folder: Path, policy: str) -> tuple[Proof, ...]:
    """Certificates of this agent. An adversary may also do nothing: the greedy worst case is at most play without attack."""
    found = [
        Proof(
            p.eps,
            p.method,
            p.acr,
            min(p.gwc, p.nominal),
            p.nominal,
            p.episodes,
            p.seed,
            levels_of(conditions.plan.game),
        )
        for conditions, p in read_certificates(folder, policy)
    ]
    return tuple(sorted(found, key=lambda p: (p.levels, p.method, p.seed, p.episodes, p.eps)))


def _about(config: Config) -> tuple[tuple[str, str], ...]:
    about = {
        "recipe": config.recipe,
        "game": config.game.id,
        "learner": config.algo,
        "bootstrap": config.bootstrap,
        "seed": str(config.seed),
        "budget": config.budget,
    }
    return tuple(about.items())


def _settings(run: RunDirectory, config: Config) -> Iterator[Setting]:
    """Settings of every stage that are not as the preset and the recipe have them."""
    same = {name: getattr(config, name) for name in ("algo", "bootstrap", "tempo", "budget", "seed")}
    # Without a preset the game's own id is known to have defaults.
    flags: dict[str, Any] = {**same, "curriculum": {"target": config.curriculum.target}}
    name = preset_for(config.game)
    preset = resolve_stages(name or config.game.id, recipe=config.recipe, flags=same if name else flags)
    learner = "dqn." if config.algo == "ppo" else "ppo."
    for stage in run.stages():
        own, usual = stage.config, preset[stage.number - 1][1]
        for key in difference(usual, own):
            if not key.startswith(learner):  # the learner not in use
                here, there = (setting_line(c, key).partition(" = ")[2] for c in (own, usual))
                yield Setting(stage.path.name, key, here, there)


def _started_with(run: RunDirectory) -> str:
    """The version that a run was started with; empty where it is the one at hand."""
    about, here = run.about(), commit_here()
    version, commit = about.get("version"), about.get("commit")
    if version == bcl.__version__ and (commit == here or not (commit and here)):
        return ""
    return f"bcl {version}" + (f", commit {commit}" if commit else "")


def _provenance(run: RunDirectory) -> Iterator[tuple[str, str]]:
    about = run.about()
    machine = about.get("machine")
    facts = {
        "command": about.get("command"),
        "version": about.get("version"),
        "commit": about.get("commit"),
        "started": about.get("date"),
        "trained on": about.get("worker_device"),
        "started from": about.get("init"),
        **(machine if isinstance(machine, dict) else {}),
        "policy": run.result().get("policy"),
        "report made by": f"bcl {bcl.__version__}",
    }
    for name, value in facts.items():
        if value is not None:
            yield name, str(value)


def _repeats(path: Path, shown: RunDirectory) -> tuple[Repeat, ...]:
    found = []
    for run in Repeats(path).runs():
        final = run.result().get("final_score")
        found.append(Repeat(run.path.name, final if isinstance(final, int | float) else None, run == shown))
    return tuple(found)
