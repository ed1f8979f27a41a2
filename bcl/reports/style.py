"""How things look, the same in the terminal, in figures and on the page.

Colours are Okabe and Ito's hues, which colour-blind people can tell apart, with a contrast of 3 on white paper and on
the dark page. No meaning hangs on colour alone: attacks also differ in marker and dash.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from bcl.attacks import Attack, attack_labels, kind_of
from bcl.settings import format_return

# Name -> colour on white, colour on the dark page. Figures are drawn in the first; the page replaces each by a
# variable.
COLOURS = {
    "paper": ("#fdfdfe", "#14171b"),
    "ink": ("#1d2126", "#e6e8ea"),
    "muted": ("#5b6168", "#a3abb3"),
    "rule": ("#d8dce0", "#343a41"),
    "blue": ("#0072b2", "#56b4e9"),
    "vermilion": ("#bd5200", "#ff8f45"),
    "green": ("#008561", "#2cc295"),
    "purple": ("#b5538a", "#e39bc3"),
    "ochre": ("#a06d00", "#e6a10a"),
}
LIGHT = {name: light for name, (light, _) in COLOURS.items()}
DARK = {name: dark for name, (_, dark) in COLOURS.items()}
TERMINAL_FLAG = f"bold {LIGHT['vermilion']}"

# Kind of attack -> colour, marker.
_KINDS = {
    "PGD": ("blue", "o"),
    "RIFGSM": ("vermilion", "s"),
    "Multi": ("green", "D"),
    "MultiT": ("purple", "^"),
    "FGSM": ("blue", "v"),
    "APGD": ("ochre", "P"),
    "WorstAction": ("vermilion", "X"),
    "Square": ("muted", "p"),
    "UniformNoise": ("muted", "."),
    "CornerNoise": ("muted", "*"),
}
_VARIANTS = ("<", "d", ">")  # hollow, for a kind's variants after the second, which has its own marker hollow
_DASHES = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (6, 1.5, 1.2, 1.5, 1.2, 1.5)))


def styles(attacks: Sequence[Attack]) -> dict[Attack, dict[str, Any]]:
    """How matplotlib draws each: hue and marker tell its kind, hollow markers variants, dashes all of one hue."""
    kinds = Counter[str]()
    hues = Counter[str]()
    found = {}
    labels = attack_labels(attacks)
    for attack in attacks:
        kind = kind_of(attack)
        colour, marker = _KINDS.get(kind, ("muted", "o"))
        variant = kinds[kind]
        found[attack] = {
            "label": labels[attack],
            "color": LIGHT[colour],
            "marker": _VARIANTS[(variant - 2) % len(_VARIANTS)] if variant > 1 else marker,
            "markerfacecolor": LIGHT["paper" if variant else colour],
            "linestyle": _DASHES[hues[colour] % len(_DASHES)],
        }
        kinds[kind] += 1
        hues[colour] += 1
    return found


def number(value: float) -> str:
    """Four digits and a true minus."""
    text = format_return(value)
    return ("0" if text == "-0" else text).replace("-", "\N{MINUS SIGN}")


def aligned(values: Sequence[float], *, errors: bool = False) -> list[str]:
    """Numbers of one column with as many decimals: four digits of the largest; of errors two of the smallest."""
    sizes = [abs(value) for value in values if value] or [1.0]
    places = min(_decimals(max(sizes), 3), _decimals(min(sizes), 2)) if errors else _decimals(max(sizes), 4)
    needed = (p for p in range(places + 1) if all(round(v, p) == round(v, places) for v in values))
    spec = f"{',' if max(sizes) >= 10_000 else ''}.{min(needed)}f"
    return [f"{round(value, places) + 0.0:{spec}}".replace("-", "\N{MINUS SIGN}") for value in values]


def _decimals(size: float, digits: int) -> int:
    return max(0, digits - 1 - math.floor(math.log10(size)))


def pixels(observation: np.ndarray) -> np.ndarray:
    """(C, H, W) in [0, 1] to (H, W, 3) bytes; of a stack of frames the newest."""
    channels = observation if len(observation) == 3 else observation[-1:].repeat(3, axis=0)
    return (255 * channels.clip(0, 1).transpose(1, 2, 0)).round().astype(np.uint8)


# Figures: their text stays text, in the page's own font.
RC: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 12,
    "axes.titlesize": 12,
    "axes.labelsize": 12,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 11,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "lines.linewidth": 1.5,
    "lines.markersize": 5,
    "text.color": LIGHT["ink"],
    "axes.labelcolor": LIGHT["ink"],
    "axes.titlecolor": LIGHT["ink"],
    "axes.edgecolor": LIGHT["muted"],
    "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"],
    "grid.color": LIGHT["rule"],
    "grid.linewidth": 0.8,
}
