"""How well a policy does under attack, what can be proven about it, and reasons to doubt both."""

from bcl.evaluation.breaking import Breaking, find_breaking, read_breaking
from bcl.evaluation.certify import Certificate, affordable_method, certify, read_certificates
from bcl.evaluation.evaluation import (
    Evaluation,
    Score,
    Start,
    Worst,
    lowest,
    read_evaluations,
    read_scores,
    worst,
    worst_within,
)
from bcl.evaluation.flags import flags, worse_than_start
from bcl.evaluation.outlook import UnderWay
from bcl.evaluation.plan import Cell, Conditions, Plan, cells, game_for_evaluation, on_each
from bcl.evaluation.play import Moment, evaluate, evaluate_cells, watch
from bcl.evaluation.suite import missing_cells, run_certificates, run_suite
