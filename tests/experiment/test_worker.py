"""One training run in a folder: finished, cut short, continued, refused."""

import contextlib
import dataclasses
import errno
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bcl import experiment
from bcl.attacks import FGSM
from bcl.config import Config, resolve, resolve_stages
from bcl.envs import make_env
from bcl.errors import BclError, MissingExtra, StoreError, TrainingError, WeightsError
from bcl.evaluation import Cell, Plan, Score, UnderWay
from bcl.experiment import train_run, worker
from bcl.experiment.trackers import Trackers
from bcl.learners import learner
from bcl.learners.learner import Task
from bcl.learners.pacing import Pace
from bcl.policies import Policy, PolicySpec
from bcl.policies.files import fingerprint, load, to_bytes
from bcl.runs import store
from bcl.runs.directory import RunDirectory, TrainingFolder
from bcl.settings import parse_settings

TINY = [
    *("--network.hidden=16", "--dqn.steps=320", "--dqn.num_envs=8", "--dqn.batch_size=16", "--dqn.samples_per_step=4"),
    *(
        "--dqn.buffer_size=200",
        "--dqn.replay_initial=32",
        "--dqn.ramp_steps=300",
        "--dqn.log_steps=40",
        "--dqn.n_step=3",
    ),
    *("--dqn.checkpoint_steps=80", "--dqn.checkpoint_replay=true", "--evaluation.episodes=2"),
]
TASK = Task("standard", 0.0, 0.0, seed=3)


class Crash(BaseException):
    """Stands for a kill: nothing of ours catches it."""


def tiny(*more: str) -> Config:
    return resolve("cartpole", settings=parse_settings([*TINY, *more]))


def crash_at(step: int) -> Callable[[int, int], None]:
    def progress(done: int, of: int) -> None:
        if done >= step:
            raise Crash

    return progress


def numbers(folder: Path) -> list[dict]:
    """The rows of metrics without their timings."""
    rows = store.read_metrics(folder / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k != "steps_per_second" and "share" not in k} for row in rows]


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """A run that was killed at step 120, after its checkpoint at 80."""
    with pytest.raises(Crash):
        train_run(tmp_path / "cut", tiny(), TASK, None, "cpu", progress=crash_at(120))
    return tmp_path / "cut"


def test_a_finished_run_is_read_and_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_rng_state()
    policy = train_run(tmp_path, tiny(), TASK, None, "cpu")
    assert torch.equal(torch.get_rng_state(), before)  # randomness is an argument
    assert sorted(os.listdir(tmp_path)) == ["metrics.jsonl", "policy.safetensors", "result.json"]
    result = store.read_json(tmp_path / "result.json")
    assert (result["policy"], result["parent"], result["seed"]) == (fingerprint(policy), "", 3)
    assert [row["step"] for row in numbers(tmp_path)] == list(range(40, 321, 40))
    (tmp_path / "checkpoint.pt").write_text("left by a kill right after result.json")
    monkeypatch.setattr("bcl.learners.dqn.train", lambda *_: pytest.fail("trained again"))
    assert fingerprint(train_run(tmp_path, tiny(), TASK, None, "cpu")) == fingerprint(policy)
    assert not (tmp_path / "checkpoint.pt").exists()


def test_the_result_follows_from_the_arguments(tmp_path: Path) -> None:
    def train(name: str, task: Task, parent: Policy | None = None) -> str:
        return fingerprint(train_run(tmp_path / name, tiny(), task, parent, "cpu"))

    first = train("a", TASK)
    torch.manual_seed(99)
    assert train("b", TASK) == first
    assert train("c", dataclasses.replace(TASK, seed=4)) != first
    parent = load(tmp_path / "a" / "policy.safetensors")
    assert train("d", TASK, parent) != first
    assert fingerprint(parent) == first  # the parent itself is left as it was
    assert load(tmp_path / "d" / "policy.safetensors").spec.parent == first


@pytest.mark.parametrize("loss", ["standard", "radial", "at", "sa"])
def test_a_killed_run_ends_as_if_it_had_not_been(tmp_path: Path, loss: str) -> None:
    task = dataclasses.replace(TASK, loss=loss, end=0.1)
    whole = train_run(tmp_path / "whole", tiny(), task, None, "cpu")
    steps: list[int] = []
    for step in (40, 120, 160, 240):  # before the first checkpoint, between two, and when one is due
        with pytest.raises(Crash):
            train_run(tmp_path / "cut", tiny(), task, None, "cpu", progress=crash_at(step))
    again = train_run(tmp_path / "cut", tiny(), task, None, "cpu", progress=lambda done, of: steps.append(done))
    assert steps[0] == 168  # 240 was killed before its own
    assert fingerprint(again) == fingerprint(whole)
    assert numbers(tmp_path / "cut") == numbers(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path / "cut")) == sorted(os.listdir(tmp_path / "whole"))


def test_a_run_goes_on_in_the_precision_in_which_it_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_a_cpu(units: bool) -> None:
        monkeypatch.setattr(learner, "uses_bf16", lambda asked, *_: units if asked == "auto" else asked == "bf16")

    wholes = []
    for units in (False, True):
        on_a_cpu(units)
        wholes.append(fingerprint(train_run(tmp_path / f"whole-{units}", tiny(), TASK, None, "cpu")))
        with pytest.raises(Crash):
            train_run(tmp_path / f"cut-{units}", tiny(), TASK, None, "cpu", progress=crash_at(120))
        on_a_cpu(not units)
        assert fingerprint(train_run(tmp_path / f"cut-{units}", tiny(), TASK, None, "cpu")) == wholes[-1]
    assert wholes[0] != wholes[1]


def test_a_precision_that_was_asked_for_stays() -> None:
    asked = resolve("pong", settings=parse_settings(["--dqn.precision=bf16"]))
    found = worker.in_precision(asked, bf16=False)
    assert [section.precision for section in (found.dqn, found.ppo, found.distill)] == ["bf16", "fp32", "fp32"]


def test_snapshots_that_the_checkpoint_does_not_know_are_dropped(tmp_path: Path) -> None:
    pace = Pace(start=0.0, target=0.1, rise_steps=80, increment=0.01, pace_episodes=1, nominal_threshold=1.0)
    task, run = dataclasses.replace(TASK, loss="at", end=0.1, pace=pace), TrainingFolder(tmp_path)
    config = tiny("--dqn.steps=1200", "--dqn.checkpoint_steps=400")  # episodes end between two checkpoints
    with pytest.raises(Crash):
        train_run(tmp_path, config, task, None, "cpu", progress=crash_at(720))
    told = torch.load(run.checkpoint, weights_only=True)["state"]["pacer"]["told"]
    before = {increments: path.read_bytes() for increments, path in run.snapshots().items()}
    assert min(before) <= told < max(before)  # some of each
    with pytest.raises(Crash):
        train_run(tmp_path, config, task, None, "cpu", progress=crash_at(0))  # before it keeps another
    after = {increments: path.read_bytes() for increments, path in run.snapshots().items()}
    assert after == {increments: kept for increments, kept in before.items() if increments <= told}


def test_a_run_stores_when_it_began_and_ended_and_how_long_it_trained(cut: Path) -> None:
    kept = torch.load(cut / "checkpoint.pt", weights_only=True)
    torch.save(kept | {"began": 5.0, "seconds": 100.0}, cut / "checkpoint.pt")  # as if it had trained for long
    before = time.time()
    train_run(cut, tiny(), TASK, None, "cpu")
    result = store.read_json(cut / "result.json")
    assert (result["began"], 100 < result["seconds"] < 160) == (5.0, True)
    assert before < result["ended"] <= time.time()


def test_without_its_replay_memory_a_run_completes(tmp_path: Path) -> None:
    config, done = tiny("--dqn.checkpoint_replay", "false"), list[int]()
    with pytest.raises(Crash):
        train_run(tmp_path, config, TASK, None, "cpu", progress=crash_at(120))
    train_run(tmp_path, config, TASK, None, "cpu", progress=lambda step, of: done.append(step))
    assert done[0] == 88
    assert [row["step"] for row in numbers(tmp_path)] == list(range(40, 321, 40))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_run_killed_on_a_gpu_continues_there_and_only_there(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        train_run(tmp_path, tiny(), TASK, None, "cuda", progress=crash_at(120))
    with pytest.raises(StoreError, match="made on cuda; take --device cuda"):
        train_run(tmp_path, tiny(), TASK, None, "cpu")
    policy = train_run(tmp_path, tiny(), TASK, None, "cuda")
    assert fingerprint(load(tmp_path / "policy.safetensors")) == fingerprint(policy)
    assert [row["step"] for row in numbers(tmp_path)] == list(range(40, 321, 40))


def flip(data: bytes, folder: Path) -> bytes:
    """One bit of one weight; a file whose frame is intact."""
    weights = torch.load(folder / "checkpoint.pt", weights_only=True)["state"]["policy"]
    at = data.index(max(weights.values(), key=torch.Tensor.numel).numpy().tobytes())
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGES: dict[str, Callable[[bytes, Path], bytes]] = {
    "empty": lambda data, _: b"",
    "cut": lambda data, _: data[: len(data) // 2],
    "garbage": lambda data, _: b"PK\x03\x04 garbage",
    "one bit": flip,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused(cut: Path, damage: str) -> None:
    path = cut / "checkpoint.pt"
    path.write_bytes(DAMAGES[damage](path.read_bytes(), cut))
    with pytest.raises(StoreError, match=r"checkpoint\.pt' is damaged .*; delete it") as caught:
        train_run(cut, tiny(), TASK, None, "cpu")
    assert "\n" not in str(caught.value)
    path.unlink()
    train_run(cut, tiny(), TASK, None, "cpu")
    assert [row["step"] for row in numbers(cut)] == list(range(40, 321, 40))


def test_a_checkpoint_runs_nothing_it_carries(cut: Path) -> None:
    ran = cut / "ran"

    class Evil:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(ran),)

    torch.save({"identity": Evil(), "device": "cpu", "state": {}}, cut / "checkpoint.pt")
    with pytest.raises(StoreError, match="damaged"):
        train_run(cut, tiny(), TASK, None, "cpu")
    assert not ran.exists()


def test_a_foreign_checkpoint_is_refused(cut: Path, tmp_path: Path) -> None:
    parent = train_run(tmp_path / "parent", tiny(), TASK, None, "cpu")
    for config, task, start in (
        (tiny("--dqn.learning_rate", "2e-3"), TASK, None),
        (tiny(), dataclasses.replace(TASK, seed=4), None),
        (tiny(), TASK, parent),
    ):
        with pytest.raises(StoreError, match="other settings, or from another agent; delete it"):
            train_run(cut, config, task, start, "cpu")
    kept = torch.load(cut / "checkpoint.pt", weights_only=True)
    torch.save(kept | {"device": "cuda"}, cut / "checkpoint.pt")
    with pytest.raises(StoreError, match="made on cuda; take --device cuda, or delete it"):
        train_run(cut, tiny(), TASK, None, "cpu")


def test_a_checkpoint_of_before_a_setting_was_added_continues(cut: Path) -> None:
    kept = torch.load(cut / "checkpoint.pt", weights_only=True)
    for name, same in (("n_step", False), ("bound_share", True)):  # of `tiny` the first is not the default
        lines = kept["settings"].splitlines(keepends=True)
        without = "".join(line for line in lines if not line.startswith(f"{name} = "))
        assert without != kept["settings"]
        torch.save(kept | {"settings": without}, cut / "checkpoint.pt")
        expected = pytest.raises(Crash) if same else pytest.raises(StoreError, match="was made under other settings")
        with expected:
            train_run(cut, tiny(), TASK, None, "cpu", progress=crash_at(81))
    torch.save(kept | {"settings": "gone = 1"}, cut / "checkpoint.pt")
    with pytest.raises(StoreError, match=r"is damaged \(unknown setting 'gone'.*; delete it"):
        train_run(cut, tiny(), TASK, None, "cpu")


def test_a_checkpoint_that_has_a_digest_in_place_of_settings(cut: Path) -> None:
    kept = torch.load(cut / "checkpoint.pt", weights_only=True)
    for name in ("format", "settings", "task", "parent"):
        kept.pop(name)
    torch.save(kept | {"identity": "of settings there were"}, cut / "checkpoint.pt")
    refused = r"by an earlier version of bcl, under other settings, or from another agent; delete it to have .* trained"
    with pytest.raises(StoreError, match=refused):
        train_run(cut, tiny(), TASK, None, "cpu")
    (cut / "checkpoint.pt").unlink()
    train_run(cut, tiny(), TASK, None, "cpu")
    assert [row["step"] for row in numbers(cut)] == list(range(40, 321, 40))


def test_a_full_disk_keeps_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, old = tmp_path / "cut" / "checkpoint.pt", list[bytes]()
    write, room = os.write, [2000]  # bytes

    def almost_full(descriptor: int, data: memoryview) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= (written := write(descriptor, data[: room[0]]))
        return written

    def progress(done: int, of: int) -> None:
        if done == 160:  # its row is written, its checkpoint is not
            old.append(path.read_bytes())
            monkeypatch.setattr(os, "write", almost_full)

    with pytest.raises(StoreError, match=r"checkpoint\.pt': No space left on device; free some space"):
        train_run(path.parent, tiny(), TASK, None, "cpu", progress=progress)
    monkeypatch.undo()
    assert path.read_bytes() == old[0]
    assert sorted(os.listdir(path.parent)) == ["checkpoint.pt", "metrics.jsonl"]
    whole = train_run(tmp_path / "whole", tiny(), TASK, None, "cpu")
    assert fingerprint(train_run(path.parent, tiny(), TASK, None, "cpu")) == fingerprint(whole)


def test_divergence_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    config = tiny("--dqn.learning_rate", "1e30", "--dqn.replay_initial", "100", "--dqn.buffer_size", "400")
    with pytest.raises(TrainingError, match="diverged"):
        train_run(tmp_path, config, TASK, None, "cpu")
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["state"]
    assert state["step"] == 80
    assert all(tensor.isfinite().all() for tensor in state["policy"].values())
    assert not (tmp_path / "result.json").exists()


def agent(plays: str = "CartPole-v1", **changes: object) -> Policy:
    env = make_env(resolve(plays).game, 1)
    spec = PolicySpec("dueling-mlp", env.obs_shape, env.num_actions, env.low, env.high, (16,), game=env.game)
    return Policy(dataclasses.replace(spec, **changes))


@pytest.mark.parametrize(
    ("policy", "flags", "expected"),
    [
        (agent("Acrobot-v1"), (), "plays 'Acrobot-v1'; give one made for 'CartPole-v1'"),
        (agent("Acrobot-v1", game=None), (), r"observes \(6,\) instead of \(4,\)"),
        (agent(num_actions=3), (), "has 3 actions instead of 2"),
        (agent(), ("--game.scale", "1 1 1 1"), "on another scale"),
        (agent(kind="actor-critic-mlp"), (), "was made for ppo and not for dqn"),
        (agent(kind="plain-mlp"), ("--network.kind", "dueling-mlp"), "leave out --network.kind"),
        (agent(hidden=(8, 4)), (), "has hidden layers 8,4; leave out --network.hidden"),
        (agent(), (), None),
        (agent(game=None), (), None),
        (agent(kind="plain-mlp"), (), None),
    ],
)
def test_an_agent_to_start_from_must_fit(policy: Policy, flags: tuple[str, ...], expected: str | None) -> None:
    stages = resolve_stages("cartpole", recipe="at", settings=parse_settings([*TINY, *flags]))
    if expected is None:
        experiment.check(stages, "cpu", policy)
        return
    with pytest.raises(WeightsError, match=expected):
        experiment.check(stages, "cpu", policy)


def test_losses_of_bounds_need_layers_that_have_some() -> None:
    policy = agent(kind="plain-mlp", activation="elu")
    experiment.check(resolve_stages("cartpole", recipe="at", settings=parse_settings(TINY)), "cpu", policy)
    for recipe in ("radial", "paced-radial+at"):
        with pytest.raises(BclError, match="cannot bound layer ELU"):
            experiment.check(resolve_stages("cartpole", recipe=recipe, settings=parse_settings(TINY)), "cpu", policy)


def test_a_damaged_configuration_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[dqn")
    with pytest.raises(StoreError, match=r"config\.toml' is damaged"):
        _ = RunDirectory(tmp_path).config


def test_a_checkpoint_is_written_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor, write, sizes = torch.arange(100_000), os.write, list[int]()
    monkeypatch.setattr(os, "write", lambda descriptor, data: (sizes.append(len(data)), write(descriptor, data))[1])
    with store.replacing(tmp_path / "t.pt") as file:
        torch.save({"a": tensor, "b": tensor + 1}, file)
    assert max(sizes) == tensor.nbytes  # never the whole file
    assert torch.equal(torch.load(tmp_path / "t.pt", weights_only=True)["a"], tensor)


def test_tensorboard_shows_what_the_metrics_hold(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    trackers = Trackers(tensorboard=True)
    with pytest.raises(Crash):
        train_run(tmp_path, tiny(), TASK, None, "cpu", trackers, crash_at(120))
    train_run(tmp_path, tiny(), TASK, None, "cpu", trackers=trackers)
    events = reader.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    rows = numbers(tmp_path)
    for group, name in (("play", "episodes"), ("loss", "loss"), ("schedule", "eps"), ("speed", "updates")):
        shown = [(event.step, pytest.approx(event.value)) for event in events.Scalars(f"{group}/{name}")]
        assert shown == [(row["step"], row[name]) for row in rows if name in row]
    assert {tag.split("/")[0] for tag in events.Tags()["scalars"]} == {"play", "loss", "schedule", "speed"}
    assert "settings/text_summary" in events.Tags()["tensors"]
    assert events.PluginTagToContent("hparams").keys() == {"_hparams_/session_start_info"}


def test_tensorboard_has_the_step_size_among_what_follows_a_schedule(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with Trackers(tensorboard=True).open(TrainingFolder(tmp_path), tiny(), 0) as track:
        track({"step": 1, "learning_rate": 0.001})
    events = reader.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Tags()["scalars"] == ["schedule/learning_rate"]


def test_tensorboard_has_scores_under_attack_with_the_settings_of_the_run(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    scores = [
        Score(attack, eps, (1.0, 2.0), (1, 1), 0.5, eps, 0.0, 0, "fixed")
        for attack, eps in ((None, 0.0), (FGSM(), 0.1))
    ]
    Trackers(tensorboard=True).show(RunDirectory(tmp_path), tiny(), scores)
    Trackers().show(RunDirectory(tmp_path / "none"), tiny(), scores)
    assert not (tmp_path / "none").exists()
    events = reader.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert {tag: events.Scalars(tag)[0].value for tag in events.Tags()["scalars"]} == {
        "score/no attack": 1.5,
        "score/FGSM at 0.1": 1.5,
    }
    assert b"dqn.learning_rate" in events.PluginTagToContent("hparams")["_hparams_/session_start_info"]


def test_missing_tensorboard_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra, match="pip install 'tensorboard"):
        experiment.check([], "cpu", None, Trackers(tensorboard=True))


class FakeWandb:
    """Takes what W&B takes; like it, refuses steps that it has."""

    class Error(Exception):
        pass

    def __init__(self) -> None:
        self.begun, self.rows, self.finished = list[dict[str, Any]](), dict[str, dict[int, dict[str, float]]](), 0

    def init(self, **about: Any) -> "FakeWandb":
        self.begun.append(about)
        self._rows = self.rows.setdefault(about["id"], {})
        return self

    def log(self, values: dict[str, float], step: int) -> None:
        if step > max(self._rows, default=-1):
            self._rows[step] = values

    def __enter__(self) -> "FakeWandb":
        return self

    def __exit__(self, *_: object) -> None:
        self.finished += 1


def test_wandb_gets_what_the_metrics_hold_as_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    trackers = Trackers(wandb="robust")
    with pytest.raises(Crash):
        train_run(tmp_path, tiny(), TASK, None, "cpu", trackers, crash_at(120))
    train_run(tmp_path, tiny(), TASK, None, "cpu", trackers=trackers)
    assert fake.finished == len(fake.begun) == 2
    assert {about["project"] for about in fake.begun} == {"robust"}
    [(_, rows)] = fake.rows.items()  # resumed: the same run
    stored = {row["step"]: row for row in numbers(tmp_path)}
    assert rows.keys() == stored.keys()
    assert all(rows[step]["updates"] == row["updates"] for step, row in stored.items())
    assert all("step" not in row and None not in row.values() for row in rows.values())


def test_what_keeps_wandb_from_starting_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)

    def refuse(**_: Any) -> FakeWandb:
        raise fake.Error("api_key not\nconfigured.")

    monkeypatch.setattr(fake, "init", refuse)
    with pytest.raises(BclError, match="W&B does not start: api_key not configured; 'wandb login' first"):
        train_run(tmp_path, tiny(), TASK, None, "cpu", trackers=Trackers(wandb="robust"))
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match="pip install 'wandb"):
        experiment.check([], "cpu", None, Trackers(wandb="robust"))


def test_who_plays_scores_tells_what_is_known_of_them(tmp_path: Path) -> None:
    game = resolve("cartpole").game
    with contextlib.closing(make_env(game, 1)) as env:
        policy = Policy(PolicySpec("plain-mlp", (4,), 2, env.low, env.high, (8,), game=game)).eval()
    plan = Plan(game, 3)
    wanted = (Cell(None, 0.0), Cell(FGSM(), 0.1))
    run = TrainingFolder(tmp_path)
    told: list[list[UnderWay]] = []

    def stop() -> bool:
        told.append(worker.under_way(run))
        return False

    order = (0, "it", to_bytes(policy), plan, wanted, "cpu", ())
    worker.evaluate(run.results.scores.path, *order, stop=stop)
    first = next(filter(None, told))
    assert [score.identity for score in first] == [cell.identity for cell in wanted]
    assert all(len(score.running) == 3 and not score.waiting for score in first)
    assert worker.under_way(run) == [], "the file is gone with the work"
    told.clear()
    many = dataclasses.replace(plan, num_envs=worker.FOLLOWED + 1)
    worker.evaluate(run.results.scores.path, 0, "it", to_bytes(policy), many, wanted, "cpu", (), stop=stop)
    assert told
    assert not any(told), "so many would take longer to write than to play"
