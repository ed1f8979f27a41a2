"""What can be proven about a policy's actions under bounded perturbations of what it sees."""

from bcl.bounds.certificates import (
    METHODS,
    Method,
    certified,
    full_precision,
    impossible,
    input_box,
    margins,
    pair_margins,
    score_bounds,
    training_margins,
)

__all__ = [
    "METHODS",
    "Method",
    "certified",
    "full_precision",
    "impossible",
    "input_box",
    "margins",
    "pair_margins",
    "score_bounds",
    "training_margins",
]
