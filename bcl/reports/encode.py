"""Pictures to the bytes of an mp4 and of a GIF."""

import contextlib
import io
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bcl.errors import MissingExtra

MOST_GIF_FRAMES, GIF_FPS, GIF_COLOURS = 100, 10, 64
GIF_SCALE = 2  # sides are divided by it


def ffmpeg() -> Any:
    """imageio-ffmpeg, which brings its own encoder, if it is installed."""
    try:
        import imageio_ffmpeg

        imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        raise MissingExtra("videos need imageio-ffmpeg", "pip install 'imageio[ffmpeg]>=2.35'") from None
    return imageio_ffmpeg


def encode(frames: Iterable[np.ndarray], fps: float) -> tuple[bytes, bytes]:
    """An mp4 of all frames at their speed, and a GIF of at most 100 of them, spread evenly, in half the size: where
    frames are left out it is a time lapse."""
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
