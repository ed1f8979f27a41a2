"""Whole curricula in which a run is judged while another trains: the same agents, scores and decisions as without."""

import dataclasses
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import bcl
from bcl import experiment
from bcl.attacks import PGD
from bcl.cli.main import main
from bcl.config import resolve_stages
from bcl.curriculum_rules import Decision, Phase
from bcl.errors import ConfigError
from bcl.evaluation import Cell, Score, UnderWay
from bcl.evaluation.outlook import Running
from bcl.experiment import Dispatcher
from bcl.experiment.phases import Curriculum, OverlappedRuns
from bcl.experiment.status import Times, status, times_of
from bcl.experiment.worker import MODULES
from bcl.games import HIGHEST_RETURNS, AtariGame, GymnasiumGame
from bcl.policies.files import fingerprint, load
from bcl.runs import executors, store
from bcl.runs.directory import Agent, Piece, RunDirectory, StageFolder, TrainingFolder
from bcl.runs.executors import JudgeBeside, Processes, Watch
from bcl.runs.store import Json
from bcl.settings import parse_settings

TINY = [
    *("--dqn.gamma=0.98", "--dqn.n_step=3", "--network.hidden=16"),
    *("--dqn.steps=320", "--dqn.num_envs=8", "--dqn.batch_size=16", "--dqn.samples_per_step=4"),
    *("--dqn.buffer_size=200", "--dqn.replay_initial=32", "--dqn.ramp_steps=300", "--dqn.log_steps=40"),
    *("--dqn.checkpoint_steps=80", "--dqn.checkpoint_replay=true", "--evaluation.episodes=2"),
    *("--curriculum.increment=0.05", "--curriculum.target=0.1", "--bootstrap=vanilla"),
]
# In phase 1 of seed 2 run 1 misses these, run 2 meets them; in phase 2 run 1 does not, and there is no other.
SECOND_RUN = [
    *("--seed=2", "--curriculum.skip=0", "--curriculum.adaptive=false", "--curriculum.max_runs=3"),
    *("--curriculum.nominal_threshold=60", "--curriculum.attacked_threshold=60"),
]


def make(run: Path, *flags: str) -> Path:
    stages = resolve_stages("cartpole", recipe="bcl-mos-at", settings=parse_settings([*TINY, *flags]))
    experiment.create(run, stages, "cpu", None)
    return run


def curriculum(run: Path) -> StageFolder:
    return RunDirectory(run).stages()[-1]


def decided(run: Path) -> list[Decision]:
    return [made.decision for made in curriculum(run).decisions()]


def scores(run: Path) -> list[str]:
    """Every score by which something was decided or reported, without the moment it was played."""
    rows = [row for path in run.rglob("scores.jsonl") for row in store.read_metrics(path)]
    left_out = ("seconds", "steps_per_second", "date")
    return sorted(repr({key: row[key] for key in sorted(row) if key not in left_out}) for row in rows)


def agents(run: Path) -> dict[str, str]:
    """Of the runs that decisions name, and the best."""
    files = [folder.policy for folder in curriculum(run).training_runs()] + [RunDirectory(run).best]
    return {path.relative_to(run).as_posix(): fingerprint(load(path)) for path in files}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What comes out where judging stops training."""
    run = make(tmp_path_factory.mktemp("plain") / "run", *SECOND_RUN)
    experiment.finish(run, Dispatcher(judge_beside="off"))
    kept = [(len(decision.candidates), decision.kept) for decision in decided(run)]
    assert kept == [(1, "incumbent"), (2, 2), (1, 1)]
    return run


def assert_same(run: Path, plain: Path) -> None:
    assert decided(run) == decided(plain)
    assert agents(run) == agents(plain)
    assert not list(run.rglob("ahead.json")), "every guess was settled"
    assert not list(run.rglob("checkpoint.pt"))


def test_decisions_scores_and_agents_are_the_same(plain: Path, tmp_path: Path) -> None:
    said: list[str] = []
    run = make(tmp_path / "run", *SECOND_RUN)
    experiment.finish(run, Dispatcher(judge_beside="on", watch=Watch(say=said.append)))
    assert_same(run, plain)
    assert scores(run) == scores(plain)
    # Run 1 of phase 1 was guessed to be good enough, and when it was not, run 2 to be no better.
    unused = [line.partition(" but not used")[0] for line in said if "but not used," in line]
    assert unused == ["phase 2, run1: begun ahead", "phase 1, run3: begun ahead"]
    unused_runs = [folder for folder, _ in curriculum(run).unused_training()]
    assert unused_runs == ["phases/002/run1", "phases/001/run3"]
    times = times_of(curriculum(run))
    assert times
    assert times.unused_runs == 2
    assert 0 < times.training < times.wall
    assert str(times) in status(run).lines[-1]
    assert "2 runs trained but not used" in status(run).lines[-1]


def test_one_score_below_a_threshold_settles_that_a_run_misses(plain: Path) -> None:
    stage = curriculum(plain)
    phases = Curriculum(stage, 0.0, Agent(plain, stage.results, ""), Dispatcher())
    phase = decided(plain)[1].phase
    first, second = (stage.phase(1).run(k).agent(1) for k in (1, 2))
    assert not phases._misses(first, phase), "before the bootstrap is judged there are no thresholds"
    phases._thresholds = (60.0, 60.0)
    assert phases._misses(first, phase)
    assert not phases._misses(second, phase)


def of(score: Cell, *running: Running) -> Json:
    """What the process that judges writes of a score."""
    return dataclasses.asdict(UnderWay(score.identity, (), running, 0))


def test_a_miss_is_foreseen_from_episodes_under_way(plain: Path, tmp_path: Path) -> None:
    stage = curriculum(plain)
    phases = Curriculum(stage, 0.0, Agent(plain, stage.results, ""), Dispatcher())
    phase = decided(plain)[1].phase
    nominal, attacked = Cell(None, 0.0), Cell(PGD(30, 0.1), phase.eps)
    start = replace(phases._found(stage.phase(1).run(1).agent(1))[nominal.key], returns=(100.0, 100.0))
    run = TrainingFolder(tmp_path / "run1")
    file = run.results.scores.progress(0)

    def foreseen(*under_way: Json, game: str = "Unknown-v0") -> bool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(phases, "_config", replace(stage.config, game=GymnasiumGame(game)))
            Piece("run 1", "judging", 1, 2, under_way=under_way).write(file)
            return phases._will_miss(run, phase, start)

    length = round(sum(start.lengths) / len(start.lengths))
    behind, over = Running(1.0, 0.0, length), Running(54.0, 0.0, 10 * length)
    assert not phases._will_miss(run, phase, start), "nothing is told yet"
    assert not foreseen(of(nominal, behind)), "before the bootstrap is judged there are no thresholds"
    phases._thresholds = (60.0, 60.0)
    assert foreseen(of(nominal, behind))
    assert foreseen(of(attacked, over)), "whoever plays longer than the start earns nothing more"
    assert not foreseen(of(Cell(PGD(30, 0.1), phase.start), behind)), "no threshold asks for this score"
    assert not foreseen(of(attacked, Running(61.0, 0.0, length)))
    # In a game whose highest return is known, only what was lost counts: 21 and -38 on average, or -39.
    assert not foreseen(of(nominal, behind), game="CartPole-v1")
    phases._thresholds = (-8.5, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(HIGHEST_RETURNS, "CartPole-v1", 21.0)
        assert not foreseen(of(nominal, over, Running(0.0, -59.0, 5)), game="CartPole-v1")
        assert foreseen(of(nominal, over, Running(0.0, -60.0, 5)), game="CartPole-v1")
    phases._thresholds = (60.0, 60.0)
    assert not phases._will_miss(run, phase, None), "the bootstrap was not judged without attack"
    for damaged in ("", "{}", '{"under_way": 5}', '{"name": "", "doing": "", "done": 1, "of": 2, "under_way": [{}]}'):
        file.write_text(damaged)
        assert not phases._will_miss(run, phase, start)


@pytest.mark.parametrize("which", ["every run", "none"])
def test_what_is_foreseen_wrongly_changes_no_decision(
    which: str, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def will_miss(self: Curriculum, run: TrainingFolder, phase: Phase, start: Score | None) -> bool:
        asked.append(run.path.name)
        return which == "every run"

    monkeypatch.setattr(Curriculum, "_will_miss", will_miss)
    monkeypatch.setattr(executors, "LOOK", 0.0)
    run = make(tmp_path / "run", *SECOND_RUN)
    experiment.finish(run, Dispatcher(judge_beside="on"))
    assert asked
    assert_same(run, plain)


def test_while_the_last_run_is_judged_the_next_phase_trains_from_the_best_before_it(tmp_path: Path) -> None:
    missed = ("--curriculum.nominal_threshold=450", "--curriculum.attacked_threshold=450", "--curriculum.runs=2")
    both = []
    for judge_beside in ("off", "on"):
        run = make(tmp_path / judge_beside, "--seed=1", *missed, "--curriculum.adaptive=false")
        experiment.finish(run, Dispatcher(judge_beside=judge_beside))
        both.append(run)
    off, on = both
    assert_same(on, off)
    first, second = decided(on)[1:]
    assert not any(one.met for one in (*first.candidates, *second.candidates)), "every run missed"
    unused = [folder for folder, _ in curriculum(on).unused_training() if folder == "phases/002/run1"]
    # From run 1 while that was judged, since it was expected to meet the thresholds; then from run 1 again, the best
    # before run 2, and that was right or not.
    assert len(unused) == (1 if first.kept == 1 else 2)


@pytest.fixture
def corrected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs of which a score settled something before the end, which is looked for once all are judged."""
    judged = OverlappedRuns.wait_until_judged
    corrected: list[str] = []

    def wait_until_judged(self: OverlappedRuns, run: TrainingFolder, enough: Callable[[], bool] | None = None) -> bool:
        judged(self, run)  # as if the last score had been the first
        if not enough or not enough():
            return False
        corrected.append(run.path.name)
        return True

    monkeypatch.setattr(OverlappedRuns, "wait_until_judged", wait_until_judged)
    return corrected


def test_a_guess_is_corrected_by_the_first_score_that_settles_it(
    plain: Path, tmp_path: Path, corrected: list[str]
) -> None:
    run = make(tmp_path / "run", *SECOND_RUN)
    experiment.finish(run, Dispatcher(judge_beside="on"))
    # of both phases: that it misses, then that all is played that was asked for
    assert corrected == ["run1", "run1"] * 2
    assert_same(run, plain)
    assert "phases/002/run1" in [folder for folder, _ in curriculum(run).unused_training()]


def test_a_guess_that_a_miss_does_not_change_is_kept(tmp_path: Path, corrected: list[str]) -> None:
    thresholds = ("--curriculum.nominal_threshold=5", "--curriculum.attacked_threshold=400")
    one_run = ("--curriculum.runs=1", "--curriculum.min_runs=1", "--curriculum.skip=0", "--curriculum.adaptive=false")
    run = make(tmp_path / "run", "--seed=1", *thresholds, *one_run)
    experiment.finish(run, Dispatcher(judge_beside="on"))
    assert corrected
    assert curriculum(run).unused_training() == []


def test_a_ratchet_trains_the_run_in_whose_folder_a_wrong_guess_lay(tmp_path: Path) -> None:
    thresholds = ("--curriculum.nominal_threshold=5", "--curriculum.attacked_threshold=5")
    ratchet = ("--curriculum.ratchet=true", "--curriculum.runs=1", "--curriculum.min_runs=1", "--curriculum.skip=0")
    both = []
    for judge_beside in ("off", "on"):
        run = make(tmp_path / judge_beside, "--seed=1", *thresholds, *ratchet, "--curriculum.adaptive=false")
        experiment.finish(run, Dispatcher(judge_beside=judge_beside))
        both.append(run)
    off, on = both
    assert any(decision.kept == "incumbent" for decision in decided(off)[1:-1]), "a guess was wrong"
    assert_same(on, off)


def kill_when(run: Path, happens: Callable[[], bool]) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*MODULES, "bcl.api.training", "bcl.cli.commands"])  # importing takes seconds
    words = ["resume", str(run), "--judge-beside", "on", "--device", "cpu"]
    process = context.Process(target=main, args=(words,))
    process.start()
    deadline = time.monotonic() + 900
    while not happens():
        assert process.is_alive(), "it ended before"
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)
    process.kill()
    process.join()


@pytest.mark.parametrize("then", ["on", "off"])
def test_kills_while_one_run_is_judged_and_another_trains_change_nothing(
    then: JudgeBeside, plain: Path, tmp_path: Path
) -> None:
    run = make(tmp_path / "run", *SECOND_RUN)
    phases = run / "stages" / "2-at" / "phases"
    judged = phases / "001" / "run1" / "evals"
    ahead = phases / "002" / "run1"

    def both() -> bool:
        return (judged / "0-progress.json").exists() and (ahead / "ahead.json").exists()

    kill_when(run, both)
    assert not (phases / "001" / "decision.json").exists()
    if then == "on":  # once more, when the wrong guess has left a checkpoint or a whole run
        kill_when(run, lambda: any((ahead / name).exists() for name in ("checkpoint.pt", "result.json")))
    experiment.finish(run, Dispatcher(judge_beside=then))
    assert_same(run, plain)


def test_ctrl_c_lets_both_keep_what_they_have(plain: Path, tmp_path: Path) -> None:
    run = make(tmp_path / "run", *SECOND_RUN)
    ahead = run / "stages" / "2-at" / "phases" / "002" / "run1"
    with pytest.raises(KeyboardInterrupt):
        experiment.finish(run, Dispatcher(judge_beside="on", watch=Watch(stop=(ahead / "metrics.jsonl").exists)))
    experiment.finish(run, Dispatcher(judge_beside="on"))
    assert_same(run, plain)


def test_nothing_is_begun_ahead_that_the_budget_does_not_allow(tmp_path: Path) -> None:
    run = make(tmp_path / "run", *SECOND_RUN, "--curriculum.max_runs=1")
    verdict = experiment.finish(run, Dispatcher(judge_beside="on"))
    assert verdict.curriculum == "1 run was allowed"
    assert curriculum(run).unused_training() == []
    assert sorted(path.name for path in (run / "stages" / "2-at" / "phases").iterdir()) == ["000", "001"]


def test_auto_is_for_one_gpu_and_games_that_other_processes_know() -> None:
    pong, cartpole = AtariGame("pong"), GymnasiumGame("CartPole-v1")
    assert Dispatcher(device="cuda").judges_beside(pong)
    assert not Dispatcher(device="cuda").judges_beside(cartpole)
    assert not Dispatcher(device="cpu").judges_beside(pong)
    assert not Dispatcher(Processes(2), device="cuda").judges_beside(pong)
    assert not Dispatcher(device="cuda", judge_beside="off").judges_beside(pong)
    assert Dispatcher(judge_beside="on").judges_beside(cartpole)


def test_judging_beside_is_refused_where_several_runs_train() -> None:
    from bcl.api.workers import Workers

    with pytest.raises(ConfigError, match="one run at a time"):
        Workers(parallel=2, judge_beside="on").worker_device()


@pytest.mark.parametrize("recipe", ["vanilla", "at", "paced-at"])
def test_judging_beside_is_refused_where_no_stage_has_phases(recipe: str, tmp_path: Path) -> None:
    workers = bcl.Workers(judge_beside="on")
    with pytest.raises(ConfigError, match="--judge-beside on changes nothing, no stage has phases"):
        bcl.train("cartpole", recipe=recipe, out=tmp_path / "new", workers=workers)
    assert not (tmp_path / "new").exists()
    experiment.create(tmp_path / "run", resolve_stages("cartpole", recipe=recipe), "cpu", None)
    with pytest.raises(ConfigError, match="--judge-beside on changes nothing, no stage has phases"):
        bcl.resume(tmp_path / "run", workers=workers)


def test_times_by_hand(tmp_path: Path) -> None:
    times = Times(wall=100.0, training=75.0, unused_runs=1, unused=12.0)
    assert (times.judging, times.judging_share) == (25.0, 0.25)
    assert str(times) == "100 s, 25% of them judging while nothing trained, 1 run trained but not used (12 s)"
    assert str(Times(0.0, 0.0, 0, 0.0)) == "0 s, 0% of them judging while nothing trained"


@pytest.mark.parametrize(("wanted", "above"), [(1, [0.05, 0.1, 0.15]), (5, [0.05]), (7, [])])
def test_scores_are_asked_for_ahead_by_whole_budgets(wanted: int, above: list[float], tmp_path: Path) -> None:
    run = make(tmp_path / "run", "--curriculum.target=0.5", "--curriculum.judged_by=pgd-30,apgd-20")
    stage = curriculum(run)
    began = Agent(run, stage.results, "")
    phases = Curriculum(stage, 0.0, began, Dispatcher(device="cuda"))
    asked = [cell.eps for cell in phases._along([Cell(None, 0.0)] * wanted, 0.0)]
    assert asked == pytest.approx([eps for eps in above for _ in range(2)])
