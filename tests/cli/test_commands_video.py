"""bcl video as a person meets it."""

import gc
import sys
from pathlib import Path

import pytest

import bcl as package
from bcl.api.showing import stem_of
from bcl.envs import make_env
from bcl.evaluation import evaluate


def test_a_video_of_the_whole_episode_tells_the_return_that_attack_does(bcl, tmp_path: Path) -> None:
    code, out, _ = bcl("video", "p.safetensors", "--attack", "noise", "--eps", "0.05", "--steps", "0", "--seed", "2")
    assert code == 0
    for name in ("noise-eps-0.05-seed-2.mp4", "noise-eps-0.05-seed-2.gif"):
        size = (tmp_path / "p.results" / "videos" / name).stat().st_size
        assert 1000 < size < 1e6
        assert f"{name}  {size / 1000:.0f} kB" in out
    policy = package.load("p.safetensors")
    assert policy.spec.game is not None
    from bcl.attacks import UniformNoise

    score = evaluate(policy, make_env(policy.spec.game, 1), UniformNoise(), 0.05, episodes=1, seed=2)
    assert f"return {score.mean:.4g} after {score.lengths[0]} steps" in out
    assert out.splitlines()[-1] == "next: bcl attack p.safetensors --attack noise --eps 0.05"


def test_a_folder_of_ones_own_and_no_attack(bcl, tmp_path: Path) -> None:
    code, out, _ = bcl("video", "p.safetensors", "--eps", "0", "--steps", "2", "--out", "here")
    assert code == 0
    assert "0% of actions changed" in out
    assert {p.name for p in (tmp_path / "here").iterdir()} == {"no-attack-seed-0.mp4", "no-attack-seed-0.gif"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["p.safetensors", "--attack", "pdg"], "did you mean 'pgd'"),
        (["p.safetensors", "--eps", "3"], "3/255"),
        (["p.safetensors", "--eps", "0.1.2"], "not a budget"),
        (["p.safetensors", "--steps", "-1"], "it must be at least 0"),
        (["p.safetensors", "--fps", "0"], "give 1 to 240"),
        (["p.safetensors", "--out", "v.mp4"], "leave the ending out"),
        (["nowhere"], "does not exist"),
        (["."], "give what is in it, such as p.safetensors"),
    ],
)
def test_mistakes_are_one_sentence(bcl, words: list[str], expected: str) -> None:
    code, out, err = bcl("video", *words)
    assert (code, out) == (2, "")
    assert expected in err
    assert len(err.splitlines()) == 1


def test_the_missing_extra_is_named_before_anything_is_played(bcl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    code, _, err = bcl("video", "p.safetensors")
    assert code == 2
    assert "pip install 'imageio[ffmpeg]" in err


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_played(
    bcl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bcl.envs.make_env", lambda *_, **__: pytest.fail("played"))
    code, out, err = bcl("video", "p.safetensors", "--out", "p.safetensors/here")
    assert (code, out) == (2, "")
    assert "cannot write 'p.safetensors/here" in err
    assert len(err.splitlines()) == 1


@pytest.mark.filterwarnings("ignore")  # imageio-ffmpeg leaves the broken pipe open
def test_an_encoder_that_fails_is_one_sentence(bcl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", "/bin/false")
    code, out, err = bcl("video", "p.safetensors", "--steps", "3")
    assert (code, out) == (2, "")
    assert "the encoder '/bin/false' failed; unset IMAGEIO_FFMPEG_EXE" in err
    assert len(err.splitlines()) == 1
    gc.collect()  # that pipe, while it may warn


def test_procgens_levels_are_in_the_name() -> None:
    names = [stem_of("pgd", 0.0, levels, 0) for levels in (None, "train", "eval")]
    assert names == ["no-attack-seed-0", "no-attack-train-levels-seed-0", "no-attack-eval-levels-seed-0"]
