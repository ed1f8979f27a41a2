"""Runs: what a command starts, what workers do, and where a run stands."""

from bcl.experiment.run import check, create, finish, share_median, shared_stages, summary, train_until_median
from bcl.experiment.verdict import Verdict
from bcl.experiment.worker import Dispatcher, train_run
