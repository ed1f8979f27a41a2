"""The page: data to one HTML file that needs nothing but itself."""

import base64
import io
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import markupsafe
import numpy as np
from matplotlib import image
from matplotlib.figure import Figure

from bcl.attacks import attack_label
from bcl.errors import StoreError, counted
from bcl.evaluation import Evaluation, Score, Worst
from bcl.evaluation.flags import EXPLAINED
from bcl.evaluation.plan import LEVELS
from bcl.reports import figures
from bcl.reports.collect import Collected, collect, report_file
from bcl.reports.frames import Frames
from bcl.reports.style import DARK, LIGHT, aligned, number, pixels
from bcl.runs import store
from bcl.settings import format_eps

# pixels a figure is drawn for; the page shows the one that fits
WIDE = 860
HALF = 540
PHONE = 350
BESIDE_SCREEN = 300
MOST_BESIDE = 1  # attacks whose table still fits beside the figure


def check(target: Path, out: Path | None) -> tuple[Collected, Path]:
    """What will be told, without frames, and where; refuses what cannot be read or written, before any play."""
    collected = collect(target)
    out = out or report_file(target)
    if out.is_dir():
        raise StoreError(f"'{out}' is a directory", "give the page a name, such as --out report.html")
    if out.exists() and out.suffix != ".html":  # it may be the weights
        raise StoreError(f"'{out}' exists and is not a page", "give the page another name, such as --out report.html")
    store.try_to_write(out)
    return collected, out


def page(collected: Collected) -> str:
    """The whole file."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bcl.reports", ""), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "attack": attack_label, "breakable": _breakable, "counted": counted, "eps": format_eps, "minus": _true_minus,
        "flag_name": lambda flag: flag.name, "name": lambda path: Path(path).name, "number": number,
        "quoted": shlex.quote, "unbroken": lambda text: text.replace("-", "\N{NON-BREAKING HYPHEN}"), "whole": _whole,
    }  # fmt: skip
    return environment.get_template("page.html").render(
        c=collected, light=LIGHT, dark=DARK, figures=_figures(collected), moments=_moments(collected.frames),
        beside=_beside(collected), cells=_cells, explained=EXPLAINED, levels=LEVELS,
    )  # fmt: skip


def _true_minus(text: str) -> str:
    return re.sub(r"(?<!\w)-(?=\d)", "\N{MINUS SIGN}", text)


def _whole(text: str) -> markupsafe.Markup:
    """With short hyphenated words such as RI-FGSM kept on one line; unlike other hyphens, theirs can be copied."""
    short = r"(?<![\w-])(?=[\w-]{3,20}(?![\w-]))\w+(?:-\w+)+"
    return markupsafe.Markup(re.sub(short, r'<span class="whole">\g<0></span>', str(markupsafe.escape(text))))


def _breakable(setting: str) -> markupsafe.Markup:
    """A dotted name that may be broken after its dots and underscores, and nowhere else."""
    return markupsafe.Markup("<wbr>").join(re.findall(r"[^._]*[._]?", setting))


def _cells(e: Evaluation) -> dict[str, dict[Any, Any]]:
    """The text of a table of scores by column and budget."""

    def column(scores: Mapping[float, Score | Worst]) -> dict[float, tuple[str, str]]:
        means = aligned([s.mean for s in scores.values()])
        errors = aligned([s.sem for s in scores.values()], errors=True) if e.scores[0].has_error else [""] * len(scores)
        return dict(zip(scores, zip(means, errors, strict=True), strict=True))

    several = len(e.attacks) > 1  # one attack is itself the worst
    minima = [w.episode_minimum for w in e.worst_within.values() if w.episode_minimum is not None]
    paired = len(minima) == len(e.worst_within)  # else episodes cannot be compared one by one
    return {
        "within": column({**({0.0: e.nominal} if e.nominal else {}), **e.worst_within}),
        "exactly": column(e.worst) if several else {},
        "minimum": dict(zip(e.worst_within, aligned(minima), strict=True)) if several and paired else {},
        "attacks": {attack: column({s.eps: s for s in e.scores if s.attack == attack}) for attack in e.attacks},
        "starts": {one.name: column(one.within) for one in e.began_from},
    }


def _figures(c: Collected) -> dict[str, list[tuple[str, str]]]:
    """Per figure its drawings, each with the class of screen that it is for."""
    drawn = {}
    if c.evaluations:
        draw = partial(figures.return_against_budget, c.evaluations[0], c.published)
        drawn["returns"] = _sizes("returns", "return against attack budget", draw, HALF if _beside(c) else WIDE)
    if c.timeline:
        runs = partial(figures.timeline, c.timeline)
        curves = partial(figures.learning_curves, c.timeline)
        drawn["timeline"] = _sizes("timeline", "training runs: time against budget", runs)
        drawn["curves"] = _sizes("curves", "returns while training, per phase", curves)
    if len({proof.eps for proof in c.proofs}) > 1:  # of one budget the table says all
        draw = partial(figures.certificates, c.proofs)
        drawn["certificates"] = _sizes("certificates", "certificates against budget", draw, 760)
    return drawn


def _beside(c: Collected) -> bool:
    """Whether the table of scores fits beside their figure."""
    return bool(c.evaluations) and len(c.evaluations[0].attacks) <= MOST_BESIDE


def _sizes(name: str, label: str, draw: Callable[[int], Figure], wide: int = WIDE) -> list[tuple[str, str]]:
    drawn = {"wide": draw(wide), "narrow": draw(PHONE)}
    return [(size, figures.svg(figure, f"{name}-{size}", label)) for size, figure in drawn.items()]


def _moments(frames: Frames | None) -> Iterator[dict[str, Any]]:
    """Pictures of each moment, and of vectors a figure."""
    for place, frame in enumerate(frames.moments if frames else ()):
        assert frames
        if frame.clean.ndim == 1:
            drawn = figures.observation(frame, frames.eps, frames.dimensions, BESIDE_SCREEN)
            pictures = {} if frame.screen is None else {"screen": frame.screen}
            figure = figures.svg(drawn, f"moment-{place}", f"observation at step {frame.step}")
        else:
            times = 0.5 / frames.eps  # no change is mid-gray
            difference = pixels(0.5 + times * (frame.seen - frame.clean))
            magnified = f"perturbation \N{MULTIPLICATION SIGN}{times:.3g}"
            pictures = {"clean": pixels(frame.clean), magnified: difference, "what the agent saw": pixels(frame.seen)}
            figure = ""
        yield {"frame": frame, "pictures": {name: _png(shown) for name, shown in pictures.items()}, "figure": figure}


def _png(pixels: np.ndarray) -> str:
    buffer = io.BytesIO()
    image.imsave(buffer, pixels, format="png")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
