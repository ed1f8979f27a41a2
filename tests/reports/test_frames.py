"""Sample frames, and the command that puts them on a page."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import bcl as package
from bcl.attacks import PGD, RIFGSM
from bcl.config import resolve
from bcl.envs import make_env
from bcl.errors import MissingExtra
from bcl.evaluation import Moment, watch
from bcl.policies import Policy, PolicySpec
from bcl.policies.files import fingerprint
from bcl.reports import frames
from bcl.reports.collect import collect, results_of
from bcl.reports.frames import choose, play_frames, worst_budget
from bcl.runs.directory import RunDirectory
from tests.reports.conftest import played


@pytest.fixture(autouse=True)
def _short_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "STEPS", 20)


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """A CartPole agent that cannot decide about a pole that stands upright, so that a small change turns its action."""
    game = resolve("cartpole").game
    env = make_env(game, 1)
    torch.manual_seed(0)
    policy = Policy(PolicySpec("dueling-mlp", (4,), 2, env.low, env.high, (8,), game=game))
    with torch.no_grad():
        left, right = policy(torch.zeros(1, 4))[0]
        policy.network.advantage[-1].bias += torch.stack([right - left, torch.zeros(())])
    package.save(policy, tmp_path / "mine.safetensors")
    return tmp_path / "mine.safetensors"


def moment(wanted: int, taken: int) -> Moment:
    return Moment(np.zeros(2), np.zeros(2), wanted, taken, 0.0, 0.0, None)


def test_moments_are_those_in_which_the_action_changed() -> None:
    same, changed = moment(1, 1), moment(1, 0)
    assert choose([same, changed, same, changed, same], 4) == [1, 3]
    assert choose([changed] * 9, 3) == [0, 4, 8]
    assert choose([same] * 5, 2) == [0, 4]


def test_frames_are_at_the_budget_that_hurt_most(pong_run: Path) -> None:
    game = resolve("pong").game
    assert worst_budget(collect(pong_run), game) == 25 / 255
    played(pong_run / "evals", RunDirectory(pong_run).config, RIFGSM(), 10 / 255, (1.0, 2.0, 3.0))
    assert worst_budget(collect(pong_run), game) == 10 / 255


def test_frames_are_made_once_whatever_is_judged_afterwards(
    agent: Path, in_folder: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "sample frames" in in_folder("report", "mine.safetensors", "--device", "cpu")[2]
    attacks = ("fgsm", "noise", "corner-noise", "ri-fgsm", "pgd-3")
    words = ("--attack", *attacks, "--eps", "0.2", "--episodes", "1", "--device", "cpu")
    assert in_folder("attack", "mine.safetensors", *words)[0] == 0
    monkeypatch.setattr(frames, "watch", lambda *_, **__: pytest.fail("played again"))
    code, out, err = in_folder("report", "mine.safetensors", "--device", "cpu")
    assert (code, err) == (0, "")
    assert "under the worst of 5 attacks within 0.2" in out


def test_frames_that_cannot_be_kept_are_shown_all_the_same(agent: Path, tmp_path: Path) -> None:
    blocked = results_of(agent).path
    blocked.write_text("")  # as a read-only place would, for any user
    out = package.report(agent, out=tmp_path / "elsewhere" / "page.html", device="cpu").file
    assert "What the agent saw" in out.read_text()
    assert blocked.read_text() == ""


def test_frames_are_played_once(agent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = play_frames(collect(agent), "cpu")
    assert found is not None
    assert (found.attack, found.eps) == (PGD(steps=10, step=0.2), 0.1)
    assert 0 < found.changed <= found.steps <= frames.STEPS
    assert all(m.wanted != m.taken for m in found.moments)
    assert all(0 < np.abs(m.seen - m.clean).max() <= 0.1 + 1e-6 for m in found.moments)
    assert {m.wanted for m in found.moments} <= {"left", "right"}
    monkeypatch.setattr(frames, "watch", lambda *_, **__: pytest.fail("played again"))
    again = play_frames(collect(agent), "cpu")
    assert again is not None
    assert (again.steps, again.changed) == (found.steps, found.changed)
    for a, b in zip(again.moments, found.moments, strict=True):
        assert (a.step, a.wanted, a.taken) == (b.step, b.wanted, b.taken)
        assert np.array_equal(a.clean, b.clean)
        assert np.array_equal(a.seen, b.seen)


def test_frames_are_of_the_first_episode_of_the_table_and_say_where_they_are_not(
    agent: Path, in_folder: Callable[..., tuple[int, str, str]]
) -> None:
    words = ("attack", "mine.safetensors", "--eps", "0.2", "--device", "cpu")
    in_folder(*words, "--episodes", "3", "--seed", "7")
    found = play_frames(collect(agent), "cpu")
    assert found is not None
    with contextlib.closing(make_env(resolve("cartpole").game, 1)) as env:
        first = next(watch(package.load(agent), env, found.attack, found.eps, seed=7))
    assert found.seed == 7
    [kept] = [m for m in found.moments if m.step == 1]
    assert np.array_equal(kept.clean, first.clean)
    assert "steps of the first episode of the table (seed 7); some" in text_of(agent)
    in_folder(*words, "--episodes", "4", "--seed", "8")
    assert "steps of an episode played for this page (seed 7)" in text_of(agent)


def test_frames_say_where_the_table_has_other_attacks(
    agent: Path, in_folder: Callable[..., tuple[int, str, str]]
) -> None:
    in_folder("attack", "mine.safetensors", "--attack", "noise", "--eps", "0.2", "--episodes", "3", "--device", "cpu")
    assert "(seed 0); the table has other attacks; some" in text_of(agent)


def text_of(agent: Path) -> str:
    return " ".join(package.report(agent, device="cpu").file.read_text().split())


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 not a zip", "other agent"])
def test_frames_that_do_not_fit_are_played_again(agent: Path, damage: bytes | str) -> None:
    kept = results_of(agent).frames_file
    first = play_frames(collect(agent), "cpu")
    if isinstance(damage, bytes):
        kept.write_bytes(damage)
    else:
        policy = package.load(agent)
        with torch.no_grad():
            policy.network.advantage[-1].bias.add_(torch.tensor([1.0, 0.0]))
        package.save(policy, agent)
    again = play_frames(collect(agent), "cpu")
    assert first is not None
    assert again is not None
    if isinstance(damage, bytes):
        assert again.changed == first.changed
    about = json.loads(np.load(kept, allow_pickle=False)["about"].tobytes())
    assert about["policy"] == fingerprint(package.load(agent))


def test_the_command_ends_with_the_page_and_the_next_command(
    agent: Path, in_folder: Callable[..., tuple[int, str, str]]
) -> None:
    code, _, _ = in_folder("attack", "mine.safetensors", "--eps", "0.05", "0.1", "--episodes", "3", "--device", "cpu")
    assert code == 0
    code, out, err = in_folder("report", "mine.safetensors", "--device", "cpu")
    assert code == 0
    verdict, path, after = out.splitlines()
    assert verdict.startswith("verdict: mine.safetensors on CartPole-v1: return ")
    assert (path, after) == ("report: mine.results/report.html", "next: bcl video mine.safetensors")
    assert "sample frames" in err
    text = Path("mine.results/report.html").read_text()
    assert "What the agent saw" in text
    assert "bcl certify mine.safetensors" in text
    code, out, err = in_folder("report", "mine.safetensors", "--no-frames", "--out", "elsewhere/page.html")
    assert (code, err) == (0, "")
    assert "What the agent saw" not in Path("elsewhere/page.html").read_text()


def test_without_what_plays_the_game_there_is_a_page_without_frames(
    agent: Path, in_folder: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> None:
        raise MissingExtra("Atari games need ale-py", "pip install ale-py")

    monkeypatch.setattr("bcl.reports.frames.play_frames", missing)
    code, out, err = in_folder("report", "mine.safetensors", "--device", "cpu")
    assert (code, out.splitlines()[1]) == (0, "report: mine.results/report.html")
    assert "no sample frames: Atari games need ale-py; pip install ale-py" in err
    said: list[str] = []
    assert package.report("mine.safetensors", out="ours.html", say=said.append).file == Path("ours.html")
    assert said[-1] == "no sample frames: Atari games need ale-py; pip install ale-py"
    assert "What the agent saw" not in Path("ours.html").read_text()


def test_an_unfinished_run_is_reported_with_what_continues_it(
    tmp_path: Path, make_pong_run: Callable[..., Path], in_folder: Callable[..., tuple[int, str, str]]
) -> None:
    make_pong_run(tmp_path / "cut run", finished=False)
    code, out, _ = in_folder("report", "cut run")
    assert (code, out.splitlines()[-1]) == (0, "next: bcl resume 'cut run'")
    assert "bcl resume &#39;cut run&#39;" in Path("cut run/report.html").read_text()


def test_nothing_is_played_for_a_page_that_cannot_be_written(
    agent: Path, in_folder: Callable[..., tuple[int, str, str]]
) -> None:
    for out, why in (
        (".", "'.' is a directory"),
        ("mine.safetensors", "'mine.safetensors' exists and is not a page"),
        ("mine.safetensors/page.html", "cannot write"),
    ):
        code, _, err = in_folder("report", "mine.safetensors", "--out", out)
        assert (code, len(err.splitlines())) == (2, 1)  # nor are frames announced
        assert why in err
    assert not results_of(agent).frames_file.exists()


def test_a_damaged_run_is_refused_before_frames_are_announced(
    tmp_path: Path, agent: Path, make_pong_run: Callable[..., Path], in_folder: Callable[..., tuple[int, str, str]]
) -> None:
    run = make_pong_run(tmp_path / "run")
    (run / "best").mkdir()
    (run / "best/policy.safetensors").write_bytes(agent.read_bytes())
    (run / "run.json").write_text("")
    code, _, err = in_folder("report", "run")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "copy the run again with all its files" in err


def test_the_next_command_is_one_that_works(
    tmp_path: Path, agent: Path, make_pong_run: Callable[..., Path], in_folder: Callable[..., tuple[int, str, str]]
) -> None:
    _, out, _ = in_folder("report", "mine.safetensors", "--no-frames")
    assert out.splitlines()[-1] == "next: bcl attack mine.safetensors"  # not judged yet
    run = make_pong_run(tmp_path / "run")  # finished, but without best/
    _, out, _ = in_folder("report", "run")
    assert out.splitlines()[-1] == "next: copy the run again with all its files, 'run' has no best policy"
    (run / "stages/3-at/policy.safetensors").write_bytes(agent.read_bytes())
    _, out, _ = in_folder("report", "run")
    assert out.splitlines()[-1] == "next: bcl attack run/stages/3-at/policy.safetensors"


@pytest.mark.parametrize(("target", "why"), [("nowhere", "does not exist"), (".", "is not a run directory")])
def test_what_is_no_run_is_refused_in_one_sentence(
    target: str, why: str, in_folder: Callable[..., tuple[int, str, str]]
) -> None:
    code, _, err = in_folder("report", target)
    assert (code, len(err.splitlines())) == (2, 1)
    assert why in err
