"""An episode under attack as an mp4 and a GIF: the game, what the attack added, what the agent saw."""

import contextlib
import functools
import io
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from bcl.attacks import Attack, attack_label
from bcl.errors import MissingExtra
from bcl.evaluation import Moment
from bcl.reports.style import LIGHT, number, pixels
from bcl.settings import format_eps

# pixels; 336 is 4 x 84, and sides are multiples of 16 as encoders like
PANE = 336
GAP = 16
TITLE = 40
CAPTION = 88
SHOWN = 1.5  # vectors are scaled to about [-1, 1]; bars are cut here
LABELS = 92  # pixels for the names of dimensions
UNMOVED = "no perturbation"
MOST_GIF_FRAMES = 100
GIF_FPS = 10
GIF_COLOURS = 64
GIF_SCALE = 2  # sides are divided by it


@dataclass(frozen=True)
class Subject:
    """What is shown, in words."""

    game: str
    attack: Attack | None
    eps: float
    actions: Sequence[str]
    dimensions: Sequence[str] = ()
    """Names of a vector's dimensions; numbers where there are none."""


def frames(moments: Iterable[Moment], subject: Subject) -> Iterator[np.ndarray]:
    """One (height, width, 3) uint8 picture per moment, all of one size."""
    attacked = attack_label(subject.attack) + (f" at {format_eps(subject.eps)}" if subject.attack else "")
    for step, moment in enumerate(moments, 1):
        canvas = Image.new("RGB", (3 * PANE + 4 * GAP, TITLE + PANE + CAPTION), LIGHT["paper"])
        draw = ImageDraw.Draw(canvas)
        panes = _image_panes(moment, subject) if moment.clean.ndim == 3 else _vector_panes(moment, subject)
        for place, (title, pane) in enumerate(panes):
            left = GAP + place * (PANE + GAP)
            draw.text((left, TITLE // 2), title, LIGHT["ink"], _font(15), anchor="lm")
            canvas.paste(pane, (left, TITLE))
            draw.rectangle((left - 1, TITLE - 1, left + PANE, TITLE + PANE), outline=LIGHT["rule"])
        low = TITLE + PANE
        right = canvas.width - GAP
        draw.text((GAP, low + 26), f"{subject.game}, {attacked}", LIGHT["ink"], _font(18), anchor="lm")
        draw.text((right, low + 26), f"step {step}", LIGHT["muted"], _font(18), anchor="rm")
        wanted = subject.actions[moment.wanted].lower()
        taken = subject.actions[moment.taken].lower()
        changed = moment.wanted != moment.taken
        action = f"wanted {wanted}, took {taken}" if changed else f"took {taken}, as wanted"
        draw.text((GAP, low + 60), action, LIGHT["vermilion" if changed else "ink"], _font(18, changed), anchor="lm")
        draw.text((right, low + 60), f"return {number(moment.total)}", LIGHT["ink"], _font(18), anchor="rm")
        yield np.asarray(canvas)


def _image_panes(moment: Moment, subject: Subject) -> Iterator[tuple[str, Image.Image]]:
    moved = moment.seen - moment.clean
    times = 0.5 / subject.eps if subject.attack else 1.0  # the whole budget is black or white
    magnified = f"perturbation \N{MULTIPLICATION SIGN} {times:.3g}, gray is none"
    yield "clean", _fitted(pixels(moment.clean))
    yield magnified if subject.attack else UNMOVED, _fitted(pixels(0.5 + times * moved))
    yield "what the agent saw", _fitted(pixels(moment.seen))


def _vector_panes(moment: Moment, subject: Subject) -> Iterator[tuple[str, Image.Image]]:
    names = subject.dimensions or [str(i) for i in range(1, len(moment.clean) + 1)]
    clean = moment.clean / SHOWN
    seen = moment.seen / SHOWN
    if moment.screen is None:
        yield "clean observation", _bars(names, [(clean, "muted")], moment.clean)
    else:
        yield "clean: the game itself", _fitted(moment.screen)
    moved = moment.seen - moment.clean
    times = SHOWN / subject.eps if subject.attack else 1.0  # the whole budget is the whole width
    magnified = f"perturbation \N{MULTIPLICATION SIGN} {times:.3g}"
    yield magnified if subject.attack else UNMOVED, _bars(names, [(moved * times / SHOWN, "vermilion")], moved)
    yield "seen (blue) against clean (gray)", _bars(names, [(clean, "muted"), (seen, "blue")], moment.seen)


def _bars(names: Sequence[str], series: Sequence[tuple[np.ndarray, str]], written: np.ndarray) -> Image.Image:
    """A row per dimension: its name, a bar of every series (1 is the whole half-width), the number in figures."""
    pane = Image.new("RGB", (PANE, PANE), LIGHT["paper"])
    draw = ImageDraw.Draw(pane)
    zero = LABELS + (PANE - LABELS) / 2
    half = (PANE - LABELS) / 2 - 8
    row = PANE / len(names)
    thick = min(row * 0.5, 24) / len(series)
    font = _font(max(7, min(14, int(row * 0.28))))
    draw.line((zero, 4, zero, PANE - 4), LIGHT["rule"])
    for i, name in enumerate(names):
        middle = (i + 0.5) * row
        draw.text((6, middle - row * 0.12), name, LIGHT["ink"], font, anchor="lm")
        figures = f"{written[i]:+.3f}".replace("-", "\N{MINUS SIGN}")
        draw.text((6, middle + row * 0.12), figures, LIGHT["muted"], font, anchor="lm")
        top = middle - thick * len(series) / 2
        for values, colour in series:
            end = zero + half * float(np.clip(values[i], -1, 1))
            if end != zero:
                bottom = max(top, top + thick - 1)  # of a hundred dimensions a bar is less than a line
                draw.rectangle((min(zero, end), top, max(zero, end), bottom), LIGHT[colour])
            top += thick
    return pane


def _fitted(picture: np.ndarray) -> Image.Image:
    """In the middle of a pane; small ones by whole factors, so that pixels stay pixels."""
    image = Image.fromarray(picture)
    times = PANE // max(image.size)
    if times >= 1:
        image = image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    else:
        image.thumbnail((PANE, PANE), Image.Resampling.LANCZOS)
    pane = Image.new("RGB", (PANE, PANE), LIGHT["paper"])
    pane.paste(image, ((PANE - image.width) // 2, (PANE - image.height) // 2))
    return pane


@functools.cache
def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name, size)


def ffmpeg() -> Any:
    """imageio-ffmpeg, which brings its own encoder, if it is installed."""
    try:
        import imageio_ffmpeg

        imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        raise MissingExtra("videos need imageio-ffmpeg", "pip install 'imageio[ffmpeg]>=2.35'") from None
    return imageio_ffmpeg


def encode(frames: Iterable[np.ndarray], fps: float) -> tuple[bytes, bytes]:
    """An mp4 of all frames, and a GIF of half the size with at most 100 of them, spread evenly."""
    import imageio.v2

    few = list[Image.Image]()
    skip = 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "video.mp4"
        writer = imageio.v2.get_writer(path, fps=fps, codec="libx264", quality=4)
        for i, frame in enumerate(frames):
            with _clear_failure():
                writer.append_data(frame)
            if i % skip == 0:
                few.append(_small(frame))
            if len(few) > MOST_GIF_FRAMES:
                few = few[::2]
                skip *= 2
        with _clear_failure():
            writer.close()
            mp4 = path.read_bytes()
    gif = io.BytesIO()
    few[0].save(gif, "GIF", save_all=True, append_images=few[1:], duration=1000 // GIF_FPS, loop=0, optimize=True)
    return mp4, gif.getvalue()


@contextlib.contextmanager
def _clear_failure() -> Iterator[None]:
    try:
        yield
    except OSError:
        way_out = "unset IMAGEIO_FFMPEG_EXE for imageio-ffmpeg's own, and see that there is room for temporary files"
        raise MissingExtra(f"the encoder '{ffmpeg().get_ffmpeg_exe()}' failed", way_out) from None


def _small(frame: np.ndarray) -> Image.Image:
    image = Image.fromarray(frame)
    half = image.resize((image.width // GIF_SCALE, image.height // GIF_SCALE), Image.Resampling.BOX)
    return half.quantize(GIF_COLOURS, dither=Image.Dither.NONE)
