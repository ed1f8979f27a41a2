"""The benchmarks run, at sizes that measure nothing; the one-environment loop computes what the library does."""

import argparse
import contextlib
import dataclasses
import functools
import importlib
import json
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import bcl
from bcl import losses, zoo
from bcl.attacks import PGD, CornerNoise, Multi, MultiT, suite
from bcl.config import resolve
from bcl.envs import atari as frames
from bcl.envs import make_env
from bcl.evaluation import Plan
from bcl.policies import Policy, PolicySpec
from bcl.policies.files import fingerprint, save, to_bytes
from bcl.runs.directory import RunDirectory, TrainingFolder
from bcl.settings import to_toml

sys.path.insert(0, str(Path(__file__).parent))
from docs_commands import small_options

pytest.importorskip("ale_py")
LOSSES = ("standard", "at", "radial")
EPS = 3 / 255


@pytest.fixture
def benchmark(monkeypatch):
    """A script of the folder by its name; `python benchmarks/x.py` finds its neighbours in the same way."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    return importlib.import_module


def test_dqn_prints_a_table_and_stores_where_its_numbers_come_from(benchmark, monkeypatch, tmp_path, capsys):
    dqn, loop = benchmark("dqn"), benchmark("reference_loop")
    monkeypatch.setattr(loop, "BATCH", 8)
    monkeypatch.setattr(loop, "WARM_UP", 4)
    monkeypatch.setattr(dqn, "WARM_UP", 1)
    out = tmp_path / "results" / "dqn.json"
    sizes = "--device cpu --num-envs 2 --batch 32 --seconds 0.01 --fill 8 --buffer 64 --losses at radial"
    monkeypatch.setattr(sys, "argv", ["dqn.py", *sizes.split(), "--out", str(out)])
    dqn.main()

    result = json.loads(out.read_text())
    assert {"command", "commit", "date", "machine", "torch", "game", "tempo"} <= result.keys()
    rows = {row["loss"]: row for row in result["rows"]}
    assert tuple(rows) == ("at", "radial")
    for row in rows.values():
        assert (row["samples_per_step"], row["num_envs"], row["batch_size"]) == (32, 2, 32)
        assert min(row["steps_per_second"], row["one_environment"], row["emulators_alone"]) > 0
        assert row["times_one_environment"] == pytest.approx(row["steps_per_second"] / row["one_environment"])
        assert 0 < row["share_update"] <= 1
    assert rows["at"]["times_public_code"] == pytest.approx(rows["at"]["steps_per_second"] / 11.4)
    assert rows["radial"]["times_public_code"] is None
    # bytes of a transition: images, action, reward, three flags, budget; 64 of them
    assert rows["radial"]["replay_mib"] == pytest.approx(64 * (2 * 84 * 84 + 8 + 4 + 3 + 4) / 2**20, rel=1e-4)
    assert rows["at"]["paper_replay_mib"] == pytest.approx(50_000 * (3 * 84 * 84 + 19) / 2**20, rel=1e-4)
    printed = capsys.readouterr().out
    assert all(f"{name} " in printed for name in ("agent steps/s", "times that loop", "share update", "peak MiB"))


def evaluated(benchmark, monkeypatch, tmp_path, words):
    """The row that `--cells` stores, four cells side by side."""
    evaluate = benchmark("evaluate")
    monkeypatch.setattr(evaluate, "ATTACKS", {"PGD-30": CornerNoise()})
    monkeypatch.setattr(evaluate, "cells_at_once", lambda policy, plan: 4)
    out = tmp_path / "evaluate.json"
    sizes = ["--device", "cpu", "--copies", "1", "--steps", "2", "--length", "120", "--attacks"]
    monkeypatch.setattr(sys, "argv", ["evaluate.py", *sizes, *words.split(), "--out", str(out)])
    evaluate.main()
    [row] = json.loads(out.read_text())["cells"]
    assert row["ratio"] == pytest.approx(row["one_by_one_s"] / row["side_by_side_s"])
    for how in ("one_by_one", "side_by_side"):
        assert row[f"{how}_steps_per_second"] * row[f"{how}_s"] == pytest.approx(row["cells"])
    return row


def test_evaluate_compares_cells_one_by_one_with_cells_side_by_side(benchmark, monkeypatch, tmp_path):
    row = evaluated(benchmark, monkeypatch, tmp_path, "--cells pgd-30")
    assert (row["evaluation"], row["cells"], row["at_once"]) == ("pgd-30", 6, 4)
    assert row["minutes_of_all_episodes"] == pytest.approx(row["side_by_side_s"] * 20 * 120 / 60)


def test_evaluate_plays_both_sets_of_levels_also_in_one_pass(benchmark, monkeypatch, tmp_path):
    pytest.importorskip("procgen")
    row = evaluated(benchmark, monkeypatch, tmp_path, "--cells levels --game fruitbot")
    assert (row["evaluation"], row["cells"], row["at_once"]) == ("levels", 8, 4)
    assert row["one_pass_steps_per_second"] * row["one_pass_s"] == pytest.approx(8)


def test_evaluate_times_decisions_at_one_budget_and_at_all(benchmark, monkeypatch, tmp_path):
    evaluate = benchmark("evaluate")
    asked = []

    def took(policy, search, attack, plan, obs, budgets):
        asked.append((attack, len(obs), len(budgets)))
        return 0.002 * len(budgets) ** 0.5

    monkeypatch.setattr(evaluate, "seconds_of_a_decision", took)
    monkeypatch.setattr(evaluate, "SETTLING", 1)
    out = tmp_path / "evaluate.json"
    words = ["--device", "cpu", "--copies", "2", "--attacks", "--decisions", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["evaluate.py", *words])
    evaluate.main()
    rows = json.loads(out.read_text())["decisions"]
    assert asked == [(attack, 2, count) for attack in suite("strong") for count in (1, 6)]
    assert [row["one_budget_ms"] for row in rows] == [2.0] * 12
    assert rows[0]["gain"] == pytest.approx(6**0.5)


def test_evaluate_compares_attacks_with_and_without_what_they_leave_alone(benchmark, monkeypatch, tmp_path, capsys):
    evaluate = benchmark("evaluate")
    monkeypatch.setattr(evaluate, "SETTLING", 2)
    monkeypatch.setattr(
        evaluate, "attack_by_name", lambda name: {"pgd": PGD(3, 0.3), "m": Multi(70), "t": MultiT(70)}[name]
    )
    out = tmp_path / "evaluate.json"
    words = [
        "--device",
        "cpu",
        "--copies",
        "2",
        "--steps",
        "2",
        "--attacks",
        "--left-alone",
        "pgd",
        "m+t",
        "--eps",
        "1/255",
        "25/255",
        "--out",
    ]
    monkeypatch.setattr(sys, "argv", ["evaluate.py", *words, str(out)])
    evaluate.main()
    rows = json.loads(out.read_text())["left_alone"]
    pair = "Multi 70 and Multi-T 70"
    assert [(row["attack"], row["eps"]) for row in rows] == [
        (a, e) for a in ("PGD-3", pair) for e in ("1/255", "25/255")
    ]
    assert all(row["ratio"] == pytest.approx(row["every_row_s"] / row["left_alone_s"]) for row in rows)
    otherwise = lambda self, obs: SimpleNamespace(actions=torch.full((2,), int(self._open_rows is None)))  # noqa: E731
    monkeypatch.setattr(evaluate.ActionChooser, "__call__", otherwise)
    with pytest.raises(SystemExit, match=r"PGD-3 at 1/255: other actions where observations are left alone"):
        evaluate.main()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("--left-alone pgd3", "no attack named 'pgd3'"),
        ("--left-alone pgd-3 --eps 3", "3 is ambiguous"),
        ("--device cuda --left-alone pgd-3", "for --device cpu"),
        ("--left-alone pgd-3+multi", "the same candidates"),
    ],
)
def test_evaluate_says_what_is_wrong(benchmark, monkeypatch, capsys, words, what):
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "--device", "cpu", *words.split()])
    with pytest.raises(SystemExit):
        benchmark("evaluate").main()
    assert what in capsys.readouterr().err


def test_a_decision_is_timed_after_the_first_ones(benchmark, monkeypatch):
    evaluate = benchmark("evaluate")
    calls = []
    monkeypatch.setattr(evaluate, "chooser_for", lambda policy, search, slots: lambda rows: calls.append(rows.shape))
    now = iter([10.0, 14.0])
    monkeypatch.setattr(evaluate.time, "perf_counter", lambda: next(now))
    plan = Plan(resolve("cartpole").game, 3, num_envs=3)
    seconds = evaluate.seconds_of_a_decision(None, None, CornerNoise(), plan, torch.zeros(3, 4), [0.1, 0.2])
    assert seconds == 1.0  # four of them in four seconds
    assert calls == [(6, 4)] * (evaluate.WARM_UP + evaluate.DECISIONS)


def test_evaluate_does_not_measure_the_first_steps_and_ends_by_steps_or_time(benchmark, monkeypatch):
    module = benchmark("evaluate")
    for seconds, expected in ((100.0, 3.0), (7.0, 3.5)):
        now = iter([0.0, 50.0, 60.0, 70.0, 73.0, 77.0, 79.0])
        monkeypatch.setattr(module.time, "perf_counter", lambda now=now: next(now))
        clock = module.StepClock(steps=3, seconds=seconds)
        with contextlib.suppress(module.EnoughError):
            for step in range(7):
                clock(step, 0)
            pytest.fail("it does not end")
        assert clock.mean == expected


def test_the_old_way_leaves_no_observation_alone(benchmark):
    evaluate = benchmark("evaluate")
    wanted = evaluate.cells_of("paper", "pong")
    before = [evaluate.as_before(cell) for cell in wanted]
    assert before == wanted, "the same attacks"
    assert [getattr(cell.attack, "leaves_settled", None) for cell in before[:5]] == [None, None, None, False, False]


def test_no_ratio_where_the_work_differs(benchmark):
    dqn = benchmark("dqn")
    row = {"loss": "at", "steps_per_second": 100.0, "samples_per_step": 8.0}
    compared = dqn.compare(row, emulators=1000.0, single=10.0, device="cuda")
    assert compared["times_one_environment"] is None
    assert compared["times_public_code"] is None
    compared = dqn.compare(row | {"samples_per_step": 32.0}, emulators=1000.0, single=10.0, device="cuda")
    assert compared["times_one_environment"] == 10
    assert compared["times_public_code"] == pytest.approx(100 / 168)


def test_ppo_prints_a_table_and_stores_where_its_numbers_come_from(benchmark, monkeypatch, tmp_path, capsys):
    pytest.importorskip("procgen")
    ppo, loop = benchmark("ppo"), benchmark("reference_ppo")
    small = functools.partial(loop.steps_per_second, num_envs=4, rollout=4, batch=8)
    monkeypatch.setattr(loop, "steps_per_second", small)
    monkeypatch.setattr(ppo, "WARM_UP", 1)
    out = tmp_path / "results" / "ppo.json"
    sizes = "--device cpu --num-envs 4 --rollout 4 --batch 8 --seconds 0.01 --losses standard at radial"
    monkeypatch.setattr(sys, "argv", ["ppo.py", *sizes.split(), "--out", str(out)])
    ppo.main()

    result = json.loads(out.read_text())
    assert {
        "command",
        "commit",
        "date",
        "machine",
        "torch",
        "game",
        "tempo",
    } <= result.keys()
    rows = {row["loss"]: row for row in result["rows"]}
    assert tuple(rows) == LOSSES
    for row in rows.values():
        assert min(row["steps_per_second"], row["emulators_alone"]) > 0
        assert row["samples_per_step"] == 3
        assert 0 < row["share_update"] <= 1
    assert rows["at"]["times_paper"] is None  # the paper's machine and sizes were others
    assert (rows["at"]["paper"], rows["standard"]["paper"]) == (694, None)
    for loss in ("standard", "at"):
        rate, reference = rows[loss]["steps_per_second"], rows[loss]["reference_loop"]
        assert rows[loss]["times_reference_loop"] == pytest.approx(rate / reference)
    assert rows["radial"]["reference_loop"] is rows["radial"]["times_reference_loop"] is None
    printed = capsys.readouterr().out
    assert all(f"{name} " in printed for name in ("share attack", "loop like public code", "times that loop"))


@pytest.mark.parametrize("tempo", ["paper", "fast"])
def test_with_a_tempo_the_learners_are_those_of_the_command(benchmark, tempo):
    dqn, ppo = benchmark("dqn"), benchmark("ppo")
    options = argparse.Namespace(
        game="pong", tempo=tempo, device="cpu", num_envs=1, batch=2, rollout=2, samples_per_step=32, precision="fp32",
        accelerate="none", fill=8, buffer=64,
    )  # fmt: skip
    for loss, recipe in dqn.RECIPES.items():
        ours, attack = dqn.settings(loss, options)
        config = resolve("pong", recipe=recipe, settings={"tempo": tempo})
        measured = {"buffer_size": ours.buffer_size, "replay_initial": 8, "log_steps": ours.log_steps}
        assert (ours, attack) == (dataclasses.replace(config.dqn, **measured), config.attack)
        assert ours.log_steps * ours.samples_per_step % ours.batch_size == 0
    options.game = "jumper"
    for loss, recipe in ppo.RECIPES.items():
        own = resolve("jumper", recipe=recipe, settings={"tempo": tempo}).ppo
        assert ppo.settings_of(loss, options) == dataclasses.replace(own, log_steps=1)


@pytest.mark.parametrize(("num_envs", "batch"), [(64, 128), (64, 4096), (8, 512), (5, 96), (1, 128)])
def test_rounds_are_whole(benchmark, num_envs, batch):
    steps = benchmark("dqn").round_length(num_envs, batch, 32)
    assert steps % num_envs == 0
    assert steps * 32 % batch == 0
    assert not any(n * 32 % batch == 0 for n in range(num_envs, steps, num_envs))


def test_rows_of_the_warm_up_are_not_measured(benchmark, monkeypatch):
    module = benchmark("meter")
    now = iter([10.0, 20.0, 22.0, 24.0])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(now))
    meter = module.Meter(seconds=3.0, warm_up=8)
    rows = [(64, 0), (128, 8), (192, 16), (256, 16)]
    finished = []
    for step, updates in rows:
        meter.log({"step": step, "updates": updates, "share_env": 0.25})
        finished.append(meter.stop())
    assert finished == [False, False, False, True]
    assert (meter.steps, meter.updates, meter.elapsed) == (128, 32, 4.0)
    assert meter.sums == {"share_env": 1.0}


@pytest.mark.parametrize("images", ["OpenCV", "NumPy"])
def test_the_loops_images_are_the_environments(benchmark, monkeypatch, images):
    loop = benchmark("reference_loop")
    if images == "OpenCV":
        pytest.importorskip("cv2")
    monkeypatch.setattr(loop, "IMAGES", images)
    rgb = np.random.default_rng(0).integers(256, size=(210, 160, 3), dtype=np.uint8)
    expected = frames.crop_v2(torch.from_numpy(rgb)[None], crop_shift=10)[0, 0]
    assert np.array_equal(loop.warp(rgb, frames.MARGIN + 10), expected.numpy())


@pytest.mark.parametrize("loss", LOSSES)
def test_the_loops_loss_is_the_librarys(benchmark, loss):
    loop = benchmark("reference_loop")
    trainer = loop.Trainer(resolve("pong").game, loss, "cpu", EPS, replay_initial=8)
    draw = torch.Generator().manual_seed(0)
    obs, next_obs = torch.rand(2, 6, 1, 84, 84, generator=draw)
    delta = EPS * torch.sign(torch.rand(obs.shape, generator=draw) - 0.5)
    actions = torch.randint(4, (6,), generator=draw)
    rewards, over = torch.tensor([0.0, 1, -1, 0, 1, 0]), torch.tensor([0.0, 0, 1, 0, 1, 0])
    online, target = trainer._online, trainer._target
    online.centre()
    found = trainer._error(obs, actions, rewards, next_obs, over, delta)

    goal = losses.double_q_target(online(next_obs), target(next_obs), rewards, 0.99 * (1 - over))
    q, past = online(obs), losses.Replayed(actions, goal, torch.full((6,), 1 / 6))
    if loss == "standard":
        expected, _ = losses.standard(q, past)
    elif loss == "at":
        expected, _ = losses.adversarial(q, online(obs + delta), past, kappa=0.8)
    else:
        bounds = online.bounds(obs - EPS, obs + EPS)
        expected, _ = losses.radial_2(q, *bounds, past, kappa=0.8)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    trainer.emulator.close()


def test_the_loops_attack_keeps_ball_and_box(benchmark):
    trainer = benchmark("reference_loop").Trainer(resolve("pong").game, "at", "cpu", EPS, replay_initial=8)
    obs = torch.rand(1, 1, 84, 84, generator=torch.Generator().manual_seed(0))
    delta = trainer._perturbation(obs)
    assert delta.abs().max() <= EPS + 1e-6
    assert 0 <= (obs + delta).min() <= (obs + delta).max() <= 1
    corners = torch.minimum((delta.abs() - EPS).abs(), torch.minimum(obs + delta, 1 - obs - delta).abs()) < 1e-6
    assert corners.float().mean() > 0.99
    trainer.emulator.close()


def test_curriculum_compares_the_same_runs(benchmark, monkeypatch, tmp_path, capsys):
    curriculum, out = benchmark("curriculum"), tmp_path / "curriculum.json"
    sizes = "--device cpu --runs 2 --parallel 2 --dqn.steps=64 --dqn.num_envs=4 --dqn.batch_size=8 --network.hidden=8"
    more = "--dqn.samples_per_step=2 --dqn.buffer_size=64 --dqn.replay_initial=16 --dqn.log_steps=16 --evaluation.episodes=1"
    monkeypatch.setattr(sys, "argv", ["curriculum.py", *sizes.split(), *more.split(), "--out", str(out)])
    curriculum.main()
    result = json.loads(out.read_text())
    assert {"command", "commit", "date", "machine", "serial_seconds", "parallel_seconds"} <= result.keys()
    assert result["same_agents"]
    assert result["ratio"] == result["serial_seconds"] / result["parallel_seconds"]
    assert "2 at once" in capsys.readouterr().out


def test_curriculum_compares_judging_beside_training_with_judging_after_it(benchmark, monkeypatch, tmp_path, capsys):
    out = tmp_path / "beside.json"
    words = "--recipe bcl-mos-at --bootstrap=vanilla --device cpu --curriculum.skip=0 --curriculum.adaptive=false"
    sizes = (
        "--dqn.steps=64 --dqn.num_envs=4 --dqn.batch_size=8 --network.hidden=8 --dqn.ramp_steps=60 --dqn.log_steps=16"
    )
    more = "--dqn.samples_per_step=2 --dqn.buffer_size=64 --dqn.replay_initial=16 --evaluation.episodes=1"
    few = "--curriculum.runs=1 --curriculum.max_runs=2 --curriculum.nominal_threshold=1"
    monkeypatch.setattr(sys, "argv", ["curriculum.py", *f"{words} {sizes} {more} {few}".split(), "--out", str(out)])
    benchmark("curriculum").main()
    result = json.loads(out.read_text())
    assert {"command", "commit", "date", "machine", "settings"} <= result.keys()
    assert (result["same_decisions"], result["runs"]) == (True, 2)
    for way in result["ways"].values():
        assert 0 < way["training"] < way["wall"]
        assert way["judging_share"] == pytest.approx(1 - way["training"] / way["wall"])
    shown = capsys.readouterr().out
    assert "the same decisions: yes, 2 runs in 2 phases" in shown
    assert shown.count("of them judging while nothing trained") == 4, "of each way when it ends, and beside the other"


def test_the_figures_of_the_results_are_drawn(benchmark, tmp_path, monkeypatch):
    figures = benchmark("figures")
    monkeypatch.setattr(figures, "IMAGES", tmp_path)
    figures.main()
    drawn = {f"{name}-{figure}.png" for name in ("pong", "pong-further") for figure in ("curves", "timeline")}
    assert {path.name for path in tmp_path.iterdir()} == drawn


def test_landscape_counts_changed_actions_and_states_without_gradient(benchmark, monkeypatch, tmp_path, capsys):
    landscape = benchmark("landscape")
    monkeypatch.setattr(landscape, "APART", 10)
    monkeypatch.setattr(landscape, "COPIES", 4)  # emulators are made one after the other
    monkeypatch.setattr(landscape, "ATTACKS", (landscape.PGD(steps=2, step=1.0), CornerNoise()))

    def found(agent, eps="3/255"):
        out = tmp_path / "deep" / "found.json"
        monkeypatch.setattr(sys, "argv", ["landscape.py", str(agent), "--eps", eps, "--states", "5", "--out", str(out)])
        landscape.main()
        result = json.loads(out.read_text())
        rows = [(row["changed"], row["without_gradient"]) for row in result["rows"]]
        return result["states"], result["without_gradient"], *rows

    agent = bcl.load("zoo:pong-vanilla")
    seen = landscape.states(agent, 12)
    assert len(seen.unique(dim=0)) == len(seen) == 12
    assert found("zoo:pong-vanilla")[:3] == (5, 0, (5, 0))
    with torch.no_grad():  # on what it is shown no unit is on; noise as large as the image turns some on
        first = agent.network.advantage[0]
        first.bias -= first(agent.network.cnn(seen)).amax()
    bcl.save(agent, tmp_path / "blind.safetensors")
    states, blind, climbing, (changed, blindly) = found(tmp_path / "blind.safetensors", eps="0.99")
    assert (states, blind, climbing) == (5, 5, (0, 0))
    assert changed == blindly > 0
    assert "PGD-2, steps of 1 eps" in capsys.readouterr().out


def test_foresight_is_right_where_the_highest_return_is_known(benchmark, monkeypatch, tmp_path, capsys):
    out = tmp_path / "deep" / "found.json"
    words = "zoo:cartpole-vanilla zoo:cartpole-at --eps 0.06 --attack fgsm --episodes 4 --out"
    monkeypatch.setattr(sys, "argv", ["foresight.py", *words.split(), str(out)])
    benchmark("foresight").main()
    rows = json.loads(out.read_text())["rows"]
    assert [(row["eps"], row["threshold"], row["misses"]) for row in rows] == [
        *((0.0, 450.0, False), (0.06, 400.0, True)),  # 0.9 and 0.8 of the 500 that the first agent has
        *((0.0, 450.0, False), (0.06, 400.0, False)),
    ]
    for row in rows:
        assert bool(row["foreseen_after"]) == row["misses"]
        assert row["foreseen_after"] <= row["known_after"]
    assert f"misses 400: foreseen after {rows[1]['foreseen_after']} of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "what"), [(["zoo:nobody"], "nobody"), (["zoo:pong-vanilla", "zoo:cartpole-at"], "one game")]
)
def test_foresight_says_what_is_wrong(benchmark, monkeypatch, words, what):
    monkeypatch.setattr(sys, "argv", ["foresight.py", *words, "--eps", "0.1"])
    with pytest.raises(SystemExit, match=what):
        benchmark("foresight").main()


@pytest.mark.parametrize(
    ("words", "what"), [(["zoo:nobody"], "nobody"), (["zoo:pong-vanilla", "--states", "0"], "0 states")]
)
def test_landscape_says_what_is_wrong(benchmark, monkeypatch, words, what):
    monkeypatch.setattr(sys, "argv", ["landscape.py", *words, "--eps", "3/255"])
    with pytest.raises(SystemExit, match=what):
        benchmark("landscape").main()


def test_the_leaderboard_is_what_the_stored_scores_say(benchmark):
    leaderboard = benchmark("leaderboard")
    assert leaderboard.page() == leaderboard.PAGE.read_text(), "run python benchmarks/leaderboard.py"


def test_the_leaderboard_has_the_lowest_return_up_to_each_budget(benchmark):
    leaderboard = benchmark("leaderboard")
    row = leaderboard.Row("an agent", "ours", {0.2: 4.0, 0.0: 5.0, 0.1: 3.0})
    assert row.within([0.0, 0.2, 0.3]) == [5.0, 3.0, None]
    half, whole = leaderboard.Row("half", "ours", {0.0: 9.0}), leaderboard.Row("whole", "ours", {0.0: 1.0, 0.2: 1.0})
    best_first = sorted([half, whole, row], key=lambda one: leaderboard.by_order(one, [0.0, 0.2]))
    assert best_first == [row, whole, half]


def publish_cartpole(benchmark, monkeypatch, folder, name, seed, starts):
    """An agent of CartPole in the zoo, evaluated with each of these starts."""
    game = resolve("cartpole").game
    env = make_env(game, 1)
    torch.manual_seed(seed)
    file = folder / f"{name}.safetensors"
    save(Policy(PolicySpec("plain-mlp", (4,), 2, env.low, env.high, (8,), game=game)), file)
    for kind in starts:
        bcl.evaluate(file, suite="quick", eps=[0.1], episodes=2, starts=kind)
    (folder / "config.toml").write_text(to_toml(resolve("cartpole")))
    words = [name, str(file), "--results", str(file.with_suffix(".results")), "--config", str(folder / "config.toml")]
    words += ["--command", "bcl train cartpole", "--commit", "abc", "--machine", "H200", "--minutes", "1"]
    monkeypatch.setattr(sys, "argv", ["publish.py", *words, "--suite", "quick"])
    benchmark("publish").main()


def test_the_leaderboard_has_varied_starts_of_the_agents_that_have_them(benchmark, monkeypatch, tmp_path):
    leaderboard = benchmark("leaderboard")
    monkeypatch.setattr(zoo, "FOLDER", tmp_path / "zoo")
    monkeypatch.chdir(tmp_path)
    publish_cartpole(benchmark, monkeypatch, tmp_path, "one", 0, ("game", "varied"))
    publish_cartpole(benchmark, monkeypatch, tmp_path, "two", 1, ("game",))
    rows, said = leaderboard.of_the_zoo("CartPole-v1")[""]
    assert [row.agent for row in rows] == ["`zoo:one`", "`zoo:two`", "`zoo:one`, varied starts"]
    one = zoo.named("one")
    assert [[*row.returns.values()] for row in (rows[0], rows[2])] == [[*one.returns.values()], [*one.varied.values()]]
    assert [text.partition(":")[0] for text in said] == ["Ours", "Ours, varied starts"]
    publish_cartpole(benchmark, monkeypatch, tmp_path, "two", 1, ("varied",))  # beside what it has
    rows, _ = leaderboard.of_the_zoo("CartPole-v1")[""]
    assert len([row for row in rows if row.agent.endswith("varied starts")]) == 2


def test_a_campaign_trains_side_by_side_and_keeps_the_agents(benchmark, monkeypatch, tmp_path, capsys):
    campaign = benchmark("campaign")
    monkeypatch.setattr(campaign, "STARTS", tmp_path / "none")
    words = ["cartpole,dqn.steps=128,recipe=vanilla", "no_such_game", "--minutes", "5"]
    words += ["--out", str(tmp_path), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["campaign.py", *words, *small_options("dqn")])
    campaign.main()
    said = capsys.readouterr().out
    assert "cartpole-dqn.steps-128-recipe-vanilla: finished" in said
    assert "no_such_game: not finished; bcl: " in said
    kept = tmp_path / "agents"
    name = "cartpole-dqn.steps-128-recipe-vanilla"
    assert [path.name for path in sorted(kept.iterdir())] == [f"{name}-best.safetensors", f"{name}.json"]
    assert bcl.load(kept / f"{name}-best.safetensors").spec.game.id == "CartPole-v1"
    facts = json.loads((kept / f"{name}.json").read_text())
    assert facts["last"]["stages/1-vanilla"]["step"] == 128
    assert [row["agent"] for row in facts["scores"]] == [facts["result"]["policy"]]


def test_minutes_tells_budgets_and_the_share_of_judging_of_stored_runs(benchmark, monkeypatch, tmp_path, capsys):
    results = Path(__file__).parents[1] / "benchmarks" / "results"
    names = ("pong-bcl-mos-at", "pong-further")
    for name in names:
        with tarfile.open(results / f"{name}.tar.xz") as archive:
            archive.extractall(tmp_path, filter="data")
    words = ["minutes.py", *(str(tmp_path / name) for name in names), "--every", "8"]
    monkeypatch.setattr(sys, "argv", words)
    benchmark("minutes").main()
    shown = capsys.readouterr().out.splitlines()
    # the second began where the first ended, and decided at 32, 627, 842 and 1,334 s
    assert [line.split() for line in shown[:5]] == [
        ["minutes", "1", "2"],
        ["0.0", "0", "0"],
        ["8.0", "4/255", "22/255"],
        ["16.0", "22/255", "26/255"],
        ["24.0", "22/255", "26/255"],
    ]
    assert shown[5] == "1: pong-bcl-mos-at, 1021 s, 46% of them judging while nothing trained"
    assert shown[6] == "2: pong-further, when it trained is not stored", "its runs trained side by side"


def test_minutes_of_a_paced_run_are_its_largest_budget_so_far(benchmark):
    rows = [{"step": 100 * k, "steps_per_second": 50.0, "eps": eps} for k, eps in enumerate((0.1, 0.3, 0.2), 1)]
    stage = SimpleNamespace(strategy="paced", paced_run=SimpleNamespace(metrics=lambda: rows))
    assert [*benchmark("minutes").reached(stage)] == [(2.0, 0.1), (4.0, 0.3), (6.0, 0.3)]


def test_the_name_of_a_campaigns_training_fits_into_a_file_name(benchmark):
    short_name = benchmark("campaign").short_name
    long = "pong," + ",".join(f"dqn.setting_{number}=1" for number in range(40))
    assert short_name("pong,dqn.steps=5") == "pong-dqn.steps-5"
    assert len(short_name(long)) < 200
    assert short_name(long) != short_name(f"{long},seed=1")


def test_a_campaign_keeps_what_held_a_budget_and_the_checkpoint_where_time_ran_out(benchmark, tmp_path):
    campaign = benchmark("campaign")
    start, held, last = (Policy(PolicySpec("dueling-mlp", (4,), 2, (-1.0,), (1.0,), (8,))) for _ in range(3))
    run = RunDirectory(tmp_path)
    save(start, run.init.policy)
    training = TrainingFolder(run.path / "stages" / "2-distill")
    save(held, training.snapshot(2))
    training.metrics_file.touch()
    torch.save({"state": {"policy": last.state_dict()}}, training.checkpoint)
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        job = campaign.Job("a", run, process)
        found = dict(campaign.agents(job))
        save(start, training.policy)  # as training leaves it at its end, before the agent is chosen
        ended = dict(campaign.agents(job))
    assert fingerprint(ended["last"]) == fingerprint(start)
    assert {name: fingerprint(policy) for name, policy in found.items()} == {
        "held-2": fingerprint(held),
        "last": fingerprint(last),
    }


def test_a_campaign_until_trained_leaves_choice_and_verdict_out(benchmark, monkeypatch, tmp_path, capsys):
    campaign = benchmark("campaign")
    monkeypatch.setattr(campaign, "STARTS", tmp_path / "none")
    monkeypatch.setattr(campaign, "LOOK_EVERY", 0.05)
    words = ["cartpole,recipe=vanilla", "--until-trained", "--weights", "int8", "--minutes", "5"]
    words += [
        "--out",
        str(tmp_path),
        "--device",
        "cpu",
        *small_options("dqn"),
        "--evaluation.episodes=5000",
    ]
    monkeypatch.setattr(sys, "argv", ["campaign.py", *words])
    campaign.main()
    assert "cartpole-recipe-vanilla: not finished" in capsys.readouterr().out
    file = tmp_path / "agents" / "cartpole-recipe-vanilla-last.safetensors"
    agent = bcl.load(file)
    assert fingerprint(agent) == fingerprint(bcl.load(save_as_int8(agent, tmp_path / "again.safetensors")))
    facts = json.loads((tmp_path / "agents" / "cartpole-recipe-vanilla.json").read_text())
    assert facts["last"]["stages/1-vanilla"]["step"] == 64
    assert facts["scores"] == []


def save_as_int8(agent, file):
    file.write_bytes(to_bytes(agent, "int8"))
    return file


def test_a_campaign_interrupts_what_does_not_end_in_time(benchmark):
    campaign = benchmark("campaign")
    sleeps = "import time; print('begun', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", sleeps], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        run.stdout.readline()
        campaign.wait([run], 0.1, lambda: None, 60.0)
    assert run.returncode == -signal.SIGTERM


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_times_of_impala_need_a_gpu(benchmark, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["impala.py"])
    with pytest.raises(SystemExit, match="needs a GPU with Triton"):
        benchmark("impala").main()


def test_fingerprints_are_of_weights_scores_and_decisions(benchmark, tmp_path):
    fingerprints = benchmark("fingerprints").fingerprints
    settings = {
        "dqn": {"steps": 200, "num_envs": 4, "replay_initial": 50, "log_steps": 100},
        "evaluation": {"episodes": 1},
    }
    found = []
    for name, seed in (("one", 0), ("again", 0), ("other", 1)):
        bcl.train("cartpole", out=tmp_path / name, seed=seed, size="small", **settings)
        found.append(fingerprints(tmp_path / name))
    one, again, other = found
    assert one == again
    assert {*one["weights"]} == {"best", "stages/1-vanilla"}
    assert (one["scores"]["count"], one["decisions"]["count"]) == (1, 0)
    assert one["weights"] != other["weights"]
