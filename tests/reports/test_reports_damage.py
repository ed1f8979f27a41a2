"""Damage to any file of a run: `bcl status` and `bcl report` say one sentence, or tell what they told before."""

import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bcl
from bcl.errors import BclError
from bcl.experiment.status import incumbent, status
from bcl.policies import files
from bcl.reports import collect as collecting
from bcl.reports import frames
from bcl.reports.collect import collect
from bcl.reports.compare import compare_agents
from bcl.runs import directory, store
from bcl.runs.directory import Repeats, RunDirectory

SETTINGS: dict[str, Any] = {
    "network": {"hidden": [8]},
    "bootstrap": "vanilla",
    "dqn": {
        "steps": 160,
        "num_envs": 8,
        "batch_size": 16,
        "samples_per_step": 4,
        "replay_initial": 32,
        "ramp_steps": 150,
    }
    | {"buffer_size": 200, "log_steps": 80},
    "evaluation": {"episodes": 2, "eps": [0.06, 0.1], "score_eps": [0.06, 0.1]},
    "curriculum": {"runs": 2, "min_runs": 2, "increment": 0.05, "target": 0.1}
    | {"nominal_threshold": 5, "attacked_threshold": 1000},
}
AT, BEST, FRAMES = "seed0/stages/2-at", "seed0/best/policy.safetensors", "seed0/frames.npz"
# One of each kind is damaged at every byte, the others at some.
WHOLLY = {
    *("repeats.json", "result.json", "seed0/run.json", "seed0/result.json", "seed0/stages/1-vanilla/metrics.jsonl"),
    *(f"{AT}/{name}" for name in ("phases/001/decision.json", "clock.json", "result.json")),
}
SOME = 12


class PlayedAgain(Exception):
    """Instead of sample frames that are played, and are then what they were."""


def play_again(*_: Any, **__: Any) -> None:
    raise PlayedAgain


class Whole:
    """A run as it was, and what is told of it."""

    def __init__(self, group: Path) -> None:
        self.group = group
        self.files = {
            path.relative_to(group).as_posix(): path.read_bytes() for path in group.rglob("*") if path.is_file()
        }
        self.told = tell(group)

    def after(self, name: str, damaged: bytes | str | None, ask: Callable[[Path], Any]) -> Any:
        """What is told once a file holds other bytes, is a folder or a link to text, or is gone: a BclError's sentence,
        or the answer."""
        path = self.group / name
        try:
            path.unlink()
            if isinstance(damaged, bytes):
                path.write_bytes(damaged)
            elif damaged is not None:
                path.symlink_to(damaged) if damaged else path.mkdir()
            return ask(self.group)
        except BclError as error:
            assert error.hint
            assert "\n" not in str(error)
            return str(error)
        finally:
            if path.is_dir():
                path.rmdir()
            path.unlink(missing_ok=True)
            path.write_bytes(self.files[name])


def tell(group: Path) -> tuple[Any, ...]:
    """All that `bcl status` and `bcl report` have to say."""
    runs = Repeats(group).runs()
    summary = store.read_json(Repeats(group).result_file) if runs else {}
    return (
        *map(summary.get, ("final_scores", "median", "iqm")),
        *((status(run.path), incumbent(run.path)) for run in runs or [RunDirectory(group)]),
        collect(group),
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Repeats, of which there is one: finished, with a certificate and sample frames."""
    group = tmp_path_factory.mktemp("damage") / "group"
    run = bcl.train("cartpole", recipe="bcl-c-at", out=group / "seed0", workers=bcl.Workers(device="cpu"), **SETTINGS)
    bcl.certify(run, eps=[0.01], episodes=1, device="cpu")
    frames.play_frames(collect(group / "seed0"), "cpu")
    Repeats(group).write(["seed0"])
    finals = {"seed0": run.verdict.final_score}
    Repeats(group).finish({"final_scores": finals, "median": "seed0", "iqm": 1.0})
    return group


def remembered(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same answers without the work: thousands of calls ask the same."""
    answers: dict[str, Any] = {}

    def ask(*args: Any, **named: Any) -> Any:
        key = repr((args, named))
        if key not in answers:
            answers[key] = function(*args, **named)
        return answers[key]

    return ask


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, names in (
        (directory, ["config_from_toml"]),
        (collecting, ["preset_for", "evaluation_defaults", "resolve_stages", "commit_here"]),
    ):
        for name in names:
            monkeypatch.setattr(module, name, remembered(getattr(module, name)))


@pytest.fixture
def whole(made: Path) -> Whole:
    return Whole(made)


def flips(data: bytes, seed: str, some: int | None = None) -> Iterator[tuple[int, bytes]]:
    """The content with one bit or byte changed, at every place of it or at some."""
    draws = random.Random(seed)
    places = range(len(data)) if some is None else sorted(draws.sample(range(len(data)), min(some, len(data))))
    for place in places:
        other = draws.choice((data[place] ^ 1 << draws.randrange(8), draws.randrange(256)))
        yield place, data[:place] + bytes([other]) + data[place + 1 :]


def test_a_changed_byte_is_told_or_changes_nothing(whole: Whole) -> None:
    cases = refused = 0
    for name, data in whole.files.items():
        for place, damaged in flips(data, name, None if name in WHOLLY else SOME):
            found = whole.after(name, damaged, tell)
            assert isinstance(found, str) or found == whole.told, f"byte {place} of {name}: {data!r} is {damaged!r}"
            cases += 1
            refused += isinstance(found, str)
    assert cases > 5000
    assert refused > 4000
    assert tell(whole.group) == whole.told


def test_a_changed_byte_is_told_by_a_comparison_too(whole: Whole) -> None:
    name = f"{AT}/phases/001/run2/metrics.jsonl"
    for _, damaged in flips(whole.files[name], name, 3):
        found = whole.after(name, damaged, lambda group: compare_agents([group]))
        assert "run2/metrics.jsonl' was changed since the run ended; restore it, or delete" in str(found)


def test_changed_weights_are_told_or_the_same(whole: Whole) -> None:
    def agent(group: Path) -> tuple[Any, str]:
        policy = files.load(group / BEST)
        return policy.spec, files.fingerprint(policy)

    expected = agent(whole.group)
    for place, damaged in flips(whole.files[BEST], BEST):
        found = whole.after(BEST, damaged, agent)
        assert isinstance(found, str) or found == expected, f"byte {place}"


def test_changed_frames_are_played_again(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    collected = collect(whole.group)

    def shown(_: Path) -> bytes:
        try:
            return pickle.dumps(frames.play_frames(collected, "cpu"))
        except PlayedAgain:
            return b""

    monkeypatch.setattr(frames, "load", remembered(frames.load))
    monkeypatch.setattr(frames, "make_env", play_again)
    expected = shown(whole.group)
    assert expected
    for place, damaged in flips(whole.files[FRAMES], FRAMES, some=600):
        assert whole.after(FRAMES, damaged, shown) in (b"", expected), f"byte {place}"


@pytest.mark.parametrize("share", [None, 0.0, 0.5, 1.0], ids=["deleted", "emptied", "halved", "last byte"])
def test_a_file_that_is_gone_or_cut_is_told_or_changes_nothing(whole: Whole, share: float | None) -> None:
    for name, data in whole.files.items():
        left = None if share is None else data[: int(share * (len(data) - 1))]
        found = whole.after(name, left, tell)
        if name == "seed0/result.json" and left is None:  # then the run is not finished
            assert found[3][0].state == found[-1].state == "stopped"
        elif "certs" in name and not isinstance(found, str) and found != whole.told:  # as before it was made
            assert (found[-1].proofs, found[:-1]) == ((), whole.told[:-1])
        else:
            assert isinstance(found, str) or found == whole.told, name


# Reading the last one fails with EIO, as on a broken disk; no permission would stop root.
@pytest.mark.parametrize("other", ["", "nowhere", "/proc/self/mem"], ids=["folder", "dangling link", "unreadable"])
def test_what_is_no_file_in_place_of_one_is_told_or_changes_nothing(whole: Whole, other: str) -> None:
    for name in whole.files:
        found = whole.after(name, other, tell)
        if name in (f"{AT}/clock.json", f"{AT}/config.toml", "seed0/stages/1-vanilla/metrics.jsonl"):
            said = "is missing" if other == "nowhere" else "cannot read"
            assert said in found
            assert f"{name}'" in found
        elif other != "nowhere" or (name != "seed0/result.json" and "certs" not in name):  # else as where it is gone
            assert isinstance(found, str) or found == whole.told, name
    assert tell(whole.group) == whole.told


@pytest.fixture
def stopped(made: Path, tmp_path: Path) -> Whole:
    """The same run, killed while the last phase's second run was training."""
    run = tmp_path / "run"
    shutil.copytree(made / "seed0", run)
    for name in ("result.json", "stages/2-at/result.json", "stages/2-at/phases/002/decision.json"):
        (run / name).unlink()
    training = run / "stages/2-at/phases/002/run2"
    (training / "result.json").unlink()
    told = {"name": "phase 2", "doing": "training", "done": 80, "of": 160}
    store.write_json(training / "progress.json", told)
    return Whole(run)


def test_a_changed_byte_of_a_stopped_run_is_told_or_changes_nothing(stopped: Whole) -> None:
    assert stopped.told[-1].state == "stopped"
    assert len(stopped.told[-2][0].pieces) == 1
    last = "stages/2-at/phases/002/run2/metrics.jsonl"
    for name, data in stopped.files.items():
        for place, damaged in (*flips(data, name, 4), *([(len(data) - 1, data[:-1] + b"x")] if name == last else [])):
            found = stopped.after(name, damaged, tell)
            assert isinstance(found, str) or found == stopped.told, f"byte {place} of {name}: {data!r} is {damaged!r}"


@pytest.mark.parametrize("share", [None, 0.5], ids=["deleted", "halved"])
def test_a_file_that_is_gone_or_cut_from_a_stopped_run_is_no_bug(stopped: Whole, share: float | None) -> None:
    for name, data in stopped.files.items():
        stopped.after(name, None if share is None else data[: int(share * len(data))], tell)
    first, second = ("stages/2-at/phases/000/decision.json", "stages/2-at/phases/001/decision.json")
    assert stopped.after(first, None, tell).startswith(f"the decision before '{stopped.group / second}' is missing")
