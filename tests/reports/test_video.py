"""Frames drawn from moments made by hand, and the files made of frames."""

import dataclasses
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor

from bcl.attacks import PGD
from bcl.errors import MissingExtra
from bcl.evaluation import Moment
from bcl.games import ACTION_NAMES
from bcl.reports.style import LIGHT, number
from bcl.reports.video import (
    GAP,
    MOST_GIF_FRAMES,
    PANE,
    TITLE,
    Subject,
    _image_panes,
    _vector_panes,
    encode,
    ffmpeg,
    frames,
)

EPS = 10 / 255
SUBJECT = Subject("pong", PGD(steps=30, step=0.1), EPS, ("NOOP", "LEFT"))


def moment(clean: np.ndarray, moved: np.ndarray, taken: int = 0, screen: np.ndarray | None = None) -> Moment:
    clean, moved = clean.astype(np.float32), moved.astype(np.float32)
    return Moment(clean, clean + moved, wanted=0, taken=taken, reward=1.0, total=5.0, screen=screen)


def draw(one: Moment, subject: Subject = SUBJECT) -> np.ndarray:
    [frame] = frames([one], subject)
    return frame


def pane(frame: np.ndarray, place: int) -> np.ndarray:
    left = GAP + place * (PANE + GAP)
    return frame[TITLE : TITLE + PANE, left : left + PANE]


def coloured(part: np.ndarray, name: str) -> np.ndarray:
    return (part == ImageColor.getrgb(LIGHT[name])).all(axis=-1)


def test_panes_show_clean_perturbation_and_seen_pixel_by_pixel() -> None:
    clean, moved = np.full((1, 84, 84), 0.4), np.zeros((1, 84, 84))
    moved[0, 0, 0], moved[0, 0, 1], moved[0, 83, 83] = EPS, -EPS, EPS / 2
    frame = draw(moment(clean, moved))
    assert frame.dtype == np.uint8
    assert frame.shape[0] % 16 == frame.shape[1] % 16 == 0  # else encoders stretch it
    first, second, third = (pane(frame, i)[2::4, 2::4, 0].astype(int) for i in range(3))  # a pixel is 4 x 4
    assert (first == 102).all()  # 0.4 of 255
    assert [second[0, 0], second[0, 1], second[83, 83], second[5, 5]] == [
        255,
        0,
        191,
        128,
    ]  # the budget: black or white
    assert [third[0, 0], third[0, 1], third[5, 5]] == [112, 92, 102]  # 10 gray levels up and down


def test_colours_are_kept() -> None:
    red = np.zeros((3, 64, 64))
    red[0] = 1.0
    assert pane(draw(moment(red, np.zeros_like(red))), 0)[PANE // 2, PANE // 2].tolist() == [255, 0, 0]


def test_a_vector_is_shown_as_the_game_and_as_bars() -> None:
    screen = np.zeros((400, 600, 3), np.uint8)
    screen[..., 2] = 255
    clean, moved = np.array([0.75, -0.3]), np.array([EPS, -EPS / 2])
    frame = draw(moment(clean, moved, screen=screen))
    assert pane(frame, 0)[PANE // 2, PANE // 2].tolist() == [0, 0, 255]
    vermilion = coloured(pane(frame, 1), "vermilion")
    whole, half = vermilion[: PANE // 2].any(axis=0).sum(), vermilion[PANE // 2 :].any(axis=0).sum()
    assert whole / half == pytest.approx(2, rel=0.05)  # the whole budget and half of it
    assert vermilion[: PANE // 2].any(axis=0).argmax() > vermilion[PANE // 2 :].any(axis=0).argmax()  # right, left
    without = draw(moment(clean, moved))
    gray = coloured(pane(without, 0), "muted").any(axis=0).sum()
    assert gray > 50  # without a picture, the observation as bars


@pytest.mark.parametrize("dimensions", [60, 130, 1024])
def test_long_vectors_are_bars_too(dimensions: int) -> None:
    clean = np.linspace(-1, 1, dimensions)
    assert coloured(pane(draw(moment(clean, np.zeros_like(clean))), 0), "muted").any(axis=0).sum() > PANE / 3


def test_of_stacked_frames_the_newest_is_shown() -> None:
    stack = np.stack([np.zeros((84, 84)), np.ones((84, 84))])
    assert (pane(draw(moment(stack, np.zeros_like(stack))), 0) == 255).all()


def test_without_attack_the_middle_pane_is_empty_and_says_so() -> None:
    unmoved = dataclasses.replace(SUBJECT, attack="", eps=0.0)
    for clean in (np.array([0.75, -0.3]), np.full((1, 84, 84), 0.4)):
        one = moment(clean, np.zeros_like(clean))
        panes = (_vector_panes if clean.ndim == 1 else _image_panes)(one, unmoved)
        assert [title for title, _ in panes][1] == "no perturbation"
        assert not coloured(pane(draw(one, unmoved), 1), "vermilion").any()


def test_the_caption_tells_whether_the_action_was_changed() -> None:
    same, changed = (draw(moment(np.zeros((1, 84, 84)), np.zeros((1, 84, 84)), taken)) for taken in (0, 1))
    caption = slice(TITLE + PANE + 40, None)
    orange = [coloured(f[caption], "vermilion").sum() for f in (same, changed)]
    assert orange[0] == 0 < orange[1]


@pytest.mark.parametrize(("count", "in_gif"), [(3, 3), (MOST_GIF_FRAMES + 1, MOST_GIF_FRAMES // 2 + 1)])
def test_an_mp4_has_every_frame_and_a_gif_a_spread_of_them(tmp_path: Path, count: int, in_gif: int) -> None:
    shades = np.linspace(0, 255, count).astype(np.uint8)
    mp4, gif = encode((np.full((32, 64, 3), shade) for shade in shades), fps=20)
    (tmp_path / "v.mp4").write_bytes(mp4)
    raw = ["-f", "rawvideo", "-pix_fmt", "gray", "-"]
    read = subprocess.run([ffmpeg().get_ffmpeg_exe(), "-i", tmp_path / "v.mp4", *raw], capture_output=True)
    assert b"64x32" in read.stderr
    assert b"20 fps" in read.stderr
    pictures = np.frombuffer(read.stdout, np.uint8).reshape(-1, 32, 64)
    assert len(pictures) == count
    assert pictures.mean(axis=(1, 2)) == pytest.approx(shades, abs=6)
    with Image.open(io.BytesIO(gif)) as image:
        assert (image.n_frames, image.size, image.info["duration"]) == (in_gif, (32, 16), 100)
        image.seek(in_gif - 1)
        assert np.asarray(image.convert("RGB")).mean() > 240  # to the end of the episode


def test_without_the_extra_the_pip_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(MissingExtra, match="pip install 'imageio"):
        ffmpeg()


def test_names_of_actions_have_the_minus_that_returns_have() -> None:
    assert number(-1) in ACTION_NAMES["Acrobot-v1"][0]
