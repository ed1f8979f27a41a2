"""How well a policy does under attack, what can be proven about it, and reasons to doubt both."""

from bcl.evaluation.breaking import Breaking, find_breaking, read_breaking
from bcl.evaluation.certify import Certificate, affordable_method, certify
from bcl.evaluation.evaluate import Cell, evaluate, evaluate_cells
from bcl.evaluation.flags import Flag, flags, worse_than_start
from bcl.evaluation.score import Score, Worst, worst, worst_within
from bcl.evaluation.suite import (
    Plan,
    cell_file,
    cells,
    game_for_evaluation,
    run_certificates,
    run_floor,
    run_suite,
)
from bcl.evaluation.watch import Moment, watch

__all__ = [
    "Breaking",
    "Cell",
    "Certificate",
    "Flag",
    "Moment",
    "Plan",
    "Score",
    "Worst",
    "affordable_method",
    "cell_file",
    "cells",
    "certify",
    "evaluate",
    "evaluate_cells",
    "find_breaking",
    "flags",
    "game_for_evaluation",
    "read_breaking",
    "run_certificates",
    "run_floor",
    "run_suite",
    "watch",
    "worse_than_start",
    "worst",
    "worst_within",
]
