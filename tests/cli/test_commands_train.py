"""bcl train and bcl resume as a person meets them, and as a scheduler kills them."""

import contextlib
import functools
import importlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

import bcl as package
from bcl.cli.main import main
from bcl.config import config_from_toml, resolve_stages
from bcl.experiment import Dispatcher
from bcl.policies.files import fingerprint
from bcl.runs import store
from bcl.settings import parse_settings

TINY = [
    *("--network.hidden=16", "--dqn.steps=160", "--dqn.num_envs=8", "--dqn.batch_size=16", "--dqn.samples_per_step=4"),
    *("--dqn.buffer_size=200", "--dqn.replay_initial=32", "--dqn.ramp_steps=150", "--dqn.log_steps=40"),
    *("--dqn.checkpoint_steps=80", "--dqn.checkpoint_replay=true", "--evaluation.episodes=2", "--device=cpu"),
]


@pytest.fixture
def bcl(in_folder):
    """Run a command line in an empty folder; gives exit code, stdout, stderr."""
    return in_folder


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def best(run: Path) -> str:
    return fingerprint(package.load(run / "best" / "policy.safetensors"))


def numbers(path: Path) -> list[dict]:
    """The rows of metrics without their timings."""
    rows = store.read_metrics(path)
    return [{k: v for k, v in row.items() if k != "steps_per_second" and "share" not in k} for row in rows]


@pytest.mark.parametrize(
    ("recipe", "stages"),
    [
        ("vanilla", ["1-vanilla"]),
        ("radial", ["1-vanilla", "2-radial"]),
        ("at", ["1-vanilla", "2-at"]),
        ("sa", ["1-sa"]),
    ],
)
def test_a_recipe_from_start_to_end(bcl, recipe: str, stages: list[str]) -> None:
    code, out, err = bcl("train", "cartpole", "--recipe", recipe, "--seed", "5", *TINY)
    assert (code, "Traceback" in err) == (0, False)
    run = Path("runs") / f"cartpole-{recipe}-s5"
    nominal, *lines, verdict, last = out.splitlines()
    attacked = [line for line in lines if line.startswith("mean return")]
    assert all(line.startswith(("flag ", "start (vanilla): ")) for line in lines if line not in attacked)
    assert verdict.startswith(f"verdict: {recipe} on CartPole-v1: return ")
    target = {"vanilla": 0.0, "radial": 0.06, "at": 0.06, "sa": 0.1}[recipe]
    assert re.match(r"mean return over 2 episodes without attack: \d", nominal)
    assert all("under the worst attack within" in line for line in attacked)
    assert all(("(start: vanilla " in line) == (len(stages) > 1) for line in attacked)
    budgets = [float(line.split(" within ")[-1].split(":")[0]) for line in attacked]
    assert budgets == ([] if recipe == "vanilla" else [0.03, 0.06, 0.1])
    assert last == f"next: bcl report {run}"

    per_stage = {"config.toml", "metrics.jsonl", "policy.safetensors", "result.json"}
    found = files(run)
    cells = {name for name in found if name.startswith("evals/")}
    of_start = {name for name in found if name.startswith("stages/1-vanilla/evals/")}
    own = {"config.toml", "run.json", "lock", "result.json", "best/policy.safetensors"}
    assert found - cells - of_start == own | {f"stages/{stage}/{name}" for stage in stages for name in per_stage}
    assert cells == {"evals/scores.jsonl"}
    scores = store.read_metrics(run / "evals" / "scores.jsonl")
    assert len(scores) == len(attacked) + 1
    assert [len(store.read_metrics(run / name)) for name in of_start] == [len(scores)] * (len(stages) > 1)

    results = [store.read_json(run / "stages" / stage / "result.json") for stage in stages]
    assert [result["parent"] for result in results] == ["", *(result["policy"] for result in results[:-1])]
    assert best(run) == results[-1]["policy"]
    assert (results[-1]["start"], results[-1]["end"]) == (0.0, target)
    seeds = [result["seed"] for result in results]
    judged = {score["seed"] for score in scores}
    assert len(judged) == 1
    assert len({*seeds, *judged}) == len(seeds) + 1

    wanted = resolve_stages("cartpole", recipe=recipe, settings=parse_settings([*TINY[:-1], "--seed", "5"]))
    for stage, (_, config) in zip(stages, wanted, strict=True):
        assert config_from_toml((run / "stages" / stage / "config.toml").read_text()) == config
    assert config_from_toml((run / "config.toml").read_text()) == wanted[-1][1]
    about = store.read_json(run / "run.json")
    assert about["seed"] == 5
    assert about.keys() == {
        *("version", "commit", "command", "seed", "init", "date", "machine", "worker_device", "settings"),
        *("format", "stages"),
    }
    assert about["machine"].keys() == {"platform", "cpus", "device", "python", "torch"}


TINY_PPO = [
    *(
        "--algo=ppo",
        "--network.hidden=16",
        "--ppo.steps=320",
        "--ppo.num_envs=8",
        "--ppo.rollout=8",
        "--ppo.batch_size=32",
    ),
    *("--ppo.epochs=2", "--ppo.log_steps=64", "--ppo.checkpoint_steps=128", "--evaluation.episodes=2", "--device=cpu"),
]


@pytest.mark.parametrize(
    ("recipe", "stages"), [("vanilla", ["1-vanilla"]), ("radial", ["1-radial"]), ("at", ["1-vanilla", "2-at"])]
)
def test_a_recipe_with_ppo(bcl, recipe: str, stages: list[str]) -> None:
    code, out, err = bcl("train", "cartpole", "--recipe", recipe, "--out", "run", *TINY_PPO)
    assert (code, "Traceback" in err) == (0, False)
    assert re.match(r"mean return over 2 episodes without attack: \d", out)
    assert sorted(os.listdir("run/stages")) == stages
    results = [store.read_json(Path("run/stages") / stage / "result.json") for stage in stages]
    assert [result["parent"] for result in results] == ["", *(result["policy"] for result in results[:-1])]
    assert [result["last"]["step"] for result in results] == [320] * len(stages)
    assert package.load("run/best/policy.safetensors").spec.kind == "actor-critic-mlp"


OWN_RECIPE = """
bootstrap = "vanilla"
[[stages]]
loss = "at"
strategy = "next"
curriculum = { target = 0.1, increment = 0.05, runs = 1, min_runs = 1 }
[stages.attack]
kind = "pgd"
steps = 2
"""


def test_a_recipe_of_ones_own_is_kept_with_the_run(bcl, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.toml").write_text(OWN_RECIPE)
    code, out, _ = bcl("train", "cartpole", "--recipe", "mine.toml", *TINY)
    assert code == 0
    assert "verdict: mine on CartPole-v1" in out
    run = Path("runs/cartpole-mine-s0")
    assert sorted(path.name for path in (run / "stages").iterdir()) == ["1-vanilla", "2-at", "mine.toml"]
    config = config_from_toml((run / "config.toml").read_text())
    assert (config.recipe, config.attack.kind, config.attack.steps, config.curriculum.runs) == ("mine", "pgd", 2, 1)
    Path("mine.toml").unlink()
    monkeypatch.setattr("bcl.recipes._OWN", {})  # another process
    (run / "result.json").unlink()
    assert bcl("resume", str(run), "--device", "cpu")[0] == 0
    assert bcl("report", str(run), "--no-frames")[0] == 0
    assert bcl("status", str(run))[0] == 0
    monkeypatch.setattr("bcl.recipes._OWN", {})
    code, out, _ = bcl("train", "cartpole", "--config", f"{run}/config.toml", "--out", "again", *TINY)
    assert (code, "verdict: mine on CartPole-v1" in out) == (0, True)


def test_a_gymnasium_id_says_that_it_has_a_preset(bcl) -> None:
    code, _, err = bcl("train", "CartPole-v1", *TINY)
    assert (code, Path("runs/CartPole-v1-vanilla-s0").is_dir()) == (0, True)
    assert "CartPole-v1 has a preset: its settings are those of 'cartpole'\n" in err
    assert "has a preset" not in bcl("train", "cartpole", *TINY)[2]


class Enough(Exception):
    """Nothing more is to be done."""


def test_a_gymnasium_id_of_an_atari_game_names_the_game(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")

    def say(line: str) -> None:
        if line.startswith("ALE/BankHeist-v5 "):
            raise Enough(line)

    with pytest.raises(Enough, match="'bcl train bank_heist' plays it as the paper does"):
        package.train("ALE/BankHeist-v5", say=say, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("mine.toml", "stages = 3", "no recipe"),
        ("mine.toml", OWN_RECIPE.replace("vanilla", "none"), "needs an agent to start from; give --init FILE"),
        ("mine.toml", "[[stages]]\nloss = 'ta'", "loss 'ta'"),
        ("mine.toml", "colour = 1\n[[stages]]\nloss = 'at'", "'colour' does not fit"),
        ("mine.toml", "[[stages]]\nloss = 'at'\n[stages.dqn]\nstpes = 3", "did you mean 'steps'"),
        ("at.toml", "[[stages]]\nloss = 'at'", "'at' is the name of a built-in recipe; give the file another name"),
        ("nowhere.toml", "", "cannot read the recipe"),
    ],
)
def test_a_recipe_that_does_not_fit_is_refused(bcl, name: str, text: str, expected: str) -> None:
    if text:
        Path(name).write_text(text)
    code, _, err = bcl("train", "cartpole", "--recipe", name)
    assert (code, err.count("\n")) == (2, 1)
    assert expected in err


def test_a_run_with_ppo_goes_on_where_it_was_killed(bcl) -> None:
    assert bcl("train", "cartpole", "--recipe", "at", "--out", "whole", *TINY_PPO)[0] == 0
    process = start("train", "cartpole", "--recipe", "at", "--out", str(Path("cut").absolute()), *TINY_PPO)
    wait_until(lambda: Path("cut/stages/2-at/checkpoint.pt").exists() or not process.is_alive())
    process.kill()
    process.join()
    assert bcl("resume", "cut", "--device", "cpu")[0] == 0
    assert best(Path("cut")) == best(Path("whole"))
    for stage in ("1-vanilla", "2-at"):
        path = Path("stages") / stage / "metrics.jsonl"
        assert numbers("cut" / path) == numbers("whole" / path)


def test_a_run_is_not_named_like_an_agent_of_the_zoo(bcl) -> None:
    assert "give it another name" in bcl("train", "cartpole", "--out", "zoo:mine", *TINY)[2]


def test_a_finished_run(bcl) -> None:
    words = ("cartpole", "--out", "run", *TINY)
    assert bcl("train", *words)[0] == 0
    before = {name: (Path("run") / name).stat().st_mtime_ns for name in files(Path("run")) - {"lock"}}

    code, out, err = bcl("train", *words)
    assert (code, err) == (0, "'run' is finished\n")
    assert out.startswith("mean return")
    code, out, err = bcl("train", *words, "--dqn.steps", "400")
    assert (code, out) == (2, "")
    assert err.startswith("bcl: 'run' was started with other settings (dqn.steps); ")
    locked = (Path("run") / "lock").stat().st_mtime_ns
    code, out, err = bcl("resume", "run", "--dqn.steps", "160")
    assert (code, err) == (0, "'run' is finished\n")
    assert (Path("run") / "lock").stat().st_mtime_ns == locked, "it is only read, maybe from a read-only disk"
    assert out.startswith("mean return")
    code, _, err = bcl("resume", "run", "--parallel", "0")
    assert (code, err.count("\n")) == (2, 1)
    assert "--parallel 0 is not possible" in err
    code, _, err = bcl("resume", "run", "--dqn.steps", "400", "--seed", "1")
    assert code == 2
    assert "started with other settings (dqn.steps, seed)" in err
    assert {name: (Path("run") / name).stat().st_mtime_ns for name in before} == before

    # judged as its own configuration says, and not as the preset of the game does
    code, out, _ = bcl("attack", "run", "--device", "cpu", "--json", "--eps", "0.1")
    assert code == 0
    assert [score["episodes"] for score in json.loads(out)["scores"]] == [2, 2]
    code, out, _ = bcl("certify", "run", "--device", "cpu", "--json")
    proofs = json.loads(out)["certificates"]
    assert [(proof["eps"], proof["episodes"]) for proof in proofs] == [(0.03, 2), (0.06, 2), (0.1, 2)]


def test_a_second_process_is_refused(bcl) -> None:
    bcl("train", "cartpole", "--out", "run", *TINY)
    with store.lock(Path("run")):
        assert bcl("resume", "run")[0] == 0, "a finished run is only read"
        Path("run", "result.json").unlink()
        code, _, err = bcl("resume", "run")
    assert code == 2
    assert f"in use by pid {os.getpid()}" in err


def test_finished_repeats_are_only_read(bcl, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: object) -> NoReturn:
        raise AssertionError("nothing is to be written")

    assert bcl("train", "cartpole", "--out", "all", "--repeats", "2", *TINY)[0] == 0
    with monkeypatch.context() as reading:
        for name in ("lock", "write_json"):
            reading.setattr(store, name, write)
        assert bcl("resume", "all")[0] == 0
        assert bcl("resume", "all/seed1")[0] == 0
    Path("all/seed1/result.json").unlink()
    with store.lock(Path("all")):
        for unfinished in ("all", "all/seed1"):
            code, _, err = bcl("resume", unfinished)
            assert code == 2
            assert "in use by pid" in err


def test_what_stops_a_run_names_the_way_on(bcl) -> None:
    bcl("train", "cartpole", "--out", "run", *TINY)
    for name in ("result.json", "stages/1-vanilla/result.json"):
        Path("run", name).unlink()
    Path("run/stages/1-vanilla/checkpoint.pt").write_text("damaged")
    code, out, err = bcl("resume", "run", "--device", "cpu")
    assert (code, out, "Traceback" in err) == (2, "", False)
    last = err.splitlines()[-1]
    assert re.match(
        r"bcl: 'run/stages/1-vanilla/checkpoint.pt' is damaged .*; delete it .*; continue with: bcl resume run --device cpu$",
        last,
    )


def test_a_finished_run_that_is_damaged_is_not_to_be_resumed_again(bcl) -> None:
    bcl("train", "cartpole", "--out", "run", *TINY)
    stored = Path("run/stages/1-vanilla/result.json").read_bytes()
    Path("run/stages/1-vanilla/result.json").write_text("damaged")
    changed = "'run/stages/1-vanilla/result.json' was changed since the run ended; restore it, or delete"
    way_out = "'run/result.json' and resume the run to go on with what is there"
    assert bcl("resume", "run", "--device", "cpu")[::2] == (2, f"bcl: {changed} {way_out}\n")

    Path("run/stages/1-vanilla/result.json").write_bytes(stored)
    Path("run/result.json").write_text("damaged")
    code, _, err = bcl("resume", "run", "--device", "cpu")
    assert (code, err.count("\n")) == (2, 1)
    assert err.endswith("; delete it to have it made again\n")

    Path("run/result.json").unlink()  # begun, and its settings edited
    with Path("run/config.toml").open("a") as config:
        config.write("\n")
    code, _, err = bcl("resume", "run", "--device", "cpu")
    assert err.endswith(
        "'run/config.toml' was changed since the run was started; restore it, or start a new run with other settings\n"
    )


def test_divergence_is_one_sentence_with_the_way_out(bcl) -> None:
    code, out, err = bcl("train", "cartpole", "--out", "run", *TINY, "--dqn.learning_rate", "1e30")
    assert (code, out) == (2, "")
    last = err.splitlines()[-1]
    assert re.match(
        r"bcl: training diverged before step \d+ .*'bcl resume run --device cpu' goes back to the last checkpoint", last
    )
    assert "lower dqn.learning_rate" in last
    assert "Traceback" not in err


def test_starting_from_an_agent(bcl, tmp_path: Path) -> None:
    assert bcl("train", "cartpole", "--out", "first", *TINY)[0] == 0
    init = ("--init", "first/best/policy.safetensors")
    assert bcl("train", "cartpole", "--recipe", "at", *init, "--out", "second", *TINY)[0] == 0
    assert os.listdir("second/stages") == ["2-at"]
    assert store.read_json(Path("second/stages/2-at/result.json"))["parent"] == best(Path("first"))
    assert store.read_json(Path("second/run.json"))["init"] == best(Path("first"))

    shutil.copytree("second", "record", ignore=shutil.ignore_patterns("*.safetensors"))  # as people hand it on
    code, out, _ = bcl("report", "record")
    assert code == 0
    assert "report: record/report.html" in out
    assert "copy best/ too" in bcl("attack", "record")[2]

    for name in ("result.json", "best/policy.safetensors", "stages/2-at/result.json"):
        Path("second", name).unlink()
    Path("first").rename("elsewhere")  # the run holds all that it needs
    assert bcl("resume", "second", "--device", "cpu")[0] == 0

    init = ("--init", "elsewhere/best/policy.safetensors")
    for words, expected in (
        (["cartpole", *init, "--network.hidden", "8"], "leave out --network.hidden"),
        (["Acrobot-v1", *init], "plays 'CartPole-v1'"),
        (["cartpole", "--init", "none.safetensors"], "does not exist"),
    ):
        code, _, err = bcl("train", *words, "--out", "third")
        assert (code, err.count("\n")) == (2, 1), err
        assert expected in err
    assert not (tmp_path / "third").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["resume", "none"], "'none' does not exist; check the path"),
        (["resume"], "RUN"),
        (["train", "cartpole", "--device", "tpu"], "auto, cpu or cuda"),
        (["train", "cartpole", "--network.kind", "dueling-cnn"], "cannot read observations"),
        (["train", "Blackjack-v1"], "only Box observations"),
        (["train", "cartpole", "--parallel", "0"], "--parallel 0 is not possible"),
        (["train", "cartpole", "--repeats", "0"], "repeats = 0 is not allowed; it must be at least 1"),
        (["train", "cartpole", "--executor", "ray", "--device", "cuda"], "does not fit --ray-gpus 0"),
        (["train", "cartpole", "--recipe", "bcl-mos-at", "--curriculum.attacked_threshold", "none"], "skipping needs"),
        (["train", "cartpole", "--recipe", "bcl-c-at", "--curriculum.start", "0.2"], "give a start below the target"),
        (["status", "none"], "'none' does not exist; check the path"),
        (["report", "none"], "'none' does not exist; check the path"),
        (["train", "fruitbot", "--ppo.num_envs", "3"], "no multiple of ppo.batch_size"),
        (["train", "cartpole", "--algo", "ppo", "--network.kind", "dueling-mlp"], "ppo cannot train network.kind"),
        (["train", "cartpole", "--algo", "ppo", "--recipe", "sa"], "defined for dqn only"),
    ],
)
def test_mistakes_leave_nothing_behind(bcl, tmp_path: Path, words: list[str], expected: str) -> None:
    code, out, err = bcl(*words)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert expected in err
    assert not any(tmp_path.iterdir())


def start(*words: str) -> multiprocessing.process.BaseProcess:
    """A command line in a process of its own, forked from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    slow = ["bcl.experiment", "bcl.envs.gymnasium", "torch._dynamo"]  # the last one comes with the first optimizer
    context.set_forkserver_preload([*slow, "bcl.api.playing", "bcl.cli.commands"])
    process = context.Process(target=main, args=(list(words),))
    process.start()
    return process


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_ctrl_c_and_sigterm_leave_a_run_to_resume(bcl, tmp_path: Path) -> None:
    stage = tmp_path / "run" / "stages" / "1-vanilla"
    words = [sys.executable, "-m", "bcl", "train", "cartpole", "--out", "run", *TINY, "--dqn.steps", "10000000"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: (stage / "checkpoint.pt").exists() or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), err
    assert "Traceback" not in err
    assert err.splitlines()[-1] == "bcl: interrupted; continue with: bcl resume run --device cpu"
    assert store.read_json(tmp_path / "run" / "run.json")["command"].startswith("bcl train cartpole --out run")

    rows = len(store.read_metrics(stage / "metrics.jsonl"))
    again = start("resume", str(tmp_path / "run"), "--device", "cpu")
    wait_until(lambda: len(store.read_metrics(stage / "metrics.jsonl")) > rows or not again.is_alive())
    again.terminate()
    again.join(60)
    assert again.exitcode == 130
    steps = [row["step"] for row in store.read_metrics(stage / "metrics.jsonl")]
    assert len(steps) > rows
    assert steps == sorted({*steps})


def test_a_run_that_was_stopped_ends_with_the_weights_of_one_that_was_not(bcl) -> None:
    words = ("train", "cartpole", *TINY, "--dqn.steps", "2000")
    assert bcl(*words, "--out", "whole")[0] == 0
    process = start(*words, "--out", str(Path("cut").absolute()))
    wait_until(lambda: Path("cut/stages/1-vanilla/checkpoint.pt").exists() or not process.is_alive())
    process.terminate()
    process.join(60)
    assert process.exitcode == 130
    assert not Path("cut/stages/1-vanilla/result.json").exists()
    assert bcl("resume", "cut", "--device", "cpu")[0] == 0
    assert best(Path("cut")) == best(Path("whole"))


@contextlib.contextmanager
def interrupted_at_its_end(original: Callable[..., Any], *args: object, **more: object) -> Iterator[Any]:
    with original(*args, **more) as given:
        try:
            yield given
        finally:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("around", ["bcl.api.console.live", "bcl.api.console.stop_requests", "bcl.runs.store.lock"])
@pytest.mark.parametrize("repeats", [[], ["--repeats", "2"]], ids=["one run", "repeats"])
def test_whenever_the_second_ctrl_c_comes_the_last_line_says_how_to_continue(
    bcl, monkeypatch: pytest.MonkeyPatch, around: str, repeats: list[str]
) -> None:
    """Here while the first one is on its way: it has ended the work, and the second comes at the end of a context."""

    def stop_when_asked(path: Path, dispatcher: Dispatcher) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert dispatcher.watch.stop()
        raise KeyboardInterrupt

    module, _, name = around.rpartition(".")
    original = getattr(importlib.import_module(module), name)
    monkeypatch.setattr(around, functools.partial(interrupted_at_its_end, original))
    monkeypatch.setattr("bcl.experiment.finish", stop_when_asked)
    code, _, err = bcl("train", "cartpole", "--out", "run", *TINY, *repeats)
    assert code == 130
    assert err.splitlines()[-1] == "bcl: interrupted; continue with: bcl resume run --device cpu"


def test_ctrl_c_between_two_repeats_says_how_to_continue(bcl, monkeypatch: pytest.MonkeyPatch) -> None:
    original = store.lock

    @contextlib.contextmanager
    def lock(folder: Path, *more: Any) -> Iterator[None]:
        if folder.name == "seed1":
            os.kill(os.getpid(), signal.SIGINT)
        with original(folder, *more):
            yield

    monkeypatch.setattr(store, "lock", lock)
    code, _, err = bcl("train", "cartpole", "--out", "run", *TINY, "--repeats", "2")
    assert code == 130
    assert err.splitlines()[-1] == "bcl: interrupted; continue with: bcl resume run --device cpu"


@pytest.mark.parametrize(
    ("changes", "unset"),
    [
        (["--dqn.checkpoint_steps=0"], "--dqn.checkpoint_steps"),
        (
            ["--dqn.checkpoint_steps=0", "--dqn.checkpoint_replay=false"],
            "--dqn.checkpoint_steps and --dqn.checkpoint_replay",
        ),
        (["--algo=ppo", "--ppo.checkpoint_steps=0"], "--ppo.checkpoint_steps"),
        ([], ""),
    ],
)
def test_what_does_not_repeat_is_told_when_it_is_stopped(
    bcl, monkeypatch: pytest.MonkeyPatch, changes: list[str], unset: str
) -> None:
    monkeypatch.setattr("bcl.experiment.finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    tiny = [word for word in TINY if "ppo" not in changes[0] or "--dqn" not in word] if changes else TINY
    code, _, err = bcl("train", "cartpole", "--out", "run", *tiny, *changes)
    assert code == 130
    warning = f"; without {unset} it ends with other weights than if it had not been stopped" if unset else ""
    assert err.splitlines()[-1] == f"bcl: interrupted; continue with: bcl resume run --device cpu{warning}"
