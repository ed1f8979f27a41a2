"""Runs: what a command starts, what workers do, and where a run stands."""

from bcl.experiment.crew import Agent, Crew
from bcl.experiment.repeats import share_median, shared_stages, summary
from bcl.experiment.run import Verdict, check, create, finish, read_config, train_until_median
from bcl.experiment.work import SILENT, Watch, check_fits, train_run

__all__ = [
    "SILENT",
    "Agent",
    "Crew",
    "Verdict",
    "Watch",
    "check",
    "check_fits",
    "create",
    "finish",
    "read_config",
    "share_median",
    "shared_stages",
    "summary",
    "train_run",
    "train_until_median",
]
