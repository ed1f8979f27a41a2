"""Runs: what a command starts, what workers do, and where a run stands."""

from bcl.experiment.crew import Agent, Crew
from bcl.experiment.run import Verdict, check, create, finish, read_config
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
    "train_run",
]
