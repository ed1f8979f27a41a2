"""A record of training that calls functions of a test."""

from collections.abc import Callable

from bcl.learners.learner import Record


class Told(Record):
    """Where `save` is one of the functions, checkpoints are kept."""

    def __init__(self, **functions: Callable[..., object]) -> None:
        self.keeps_checkpoints = "save" in functions
        vars(self).update(functions)
