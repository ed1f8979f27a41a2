"""Rows of metrics shown in TensorBoard or Weights & Biases too; metrics.jsonl is what counts."""

import contextlib
import dataclasses
import textwrap
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bcl.attacks import attack_labels
from bcl.config import Config
from bcl.errors import BclError, optional
from bcl.evaluation import Score
from bcl.learners.metrics import Metrics
from bcl.runs import store
from bcl.runs.directory import RunDirectory, TrainingFolder
from bcl.settings import flat, format_eps, to_toml

Tracker = Callable[[Metrics], None]


@dataclass(frozen=True)
class Trackers:
    """Who gets the metrics of a training run besides its file."""

    tensorboard: bool = False
    wandb: str = ""
    """The W&B project; empty: none."""

    def check(self) -> None:
        """Refuse what is not installed."""
        if self.tensorboard:
            _summary_writer()
        if self.wandb:
            _wandb()

    @contextlib.contextmanager
    def open(self, run: TrainingFolder, config: Config, step: int) -> Iterator[Tracker]:
        """What takes the rows of a training run that follow `step`; TensorBoard forgets those it had."""
        with contextlib.ExitStack() as stack:
            board: Any = None
            online: Any = None
            if self.tensorboard:
                board = stack.enter_context(_summary_writer()(str(run.tensorboard), purge_step=step + 1))
                board.add_text("settings", textwrap.indent(to_toml(config), "    "))  # to Markdown: code
                _add_hparams(board, config)
            if self.wandb:
                online = stack.enter_context(_wandb_run(self.wandb, run, config))

            def track(row: Metrics) -> None:
                values = {name: value for name, value in row.items() if value is not None and name != "step"}
                if board:
                    for name, value in values.items():
                        board.add_scalar(f"{_group(name)}/{name}", value, row["step"])
                if online:
                    online.log(values, step=int(row["step"] or 0))

            yield track

    def show(self, run: RunDirectory, config: Config, scores: Sequence[Score]) -> None:
        """The settings and the scores of a whole run, for TensorBoard's table of hyper-parameters."""
        if not self.tensorboard:
            return
        with _summary_writer()(str(run.tensorboard)) as writer:
            labels = attack_labels(score.attack for score in scores)
            for score in scores:
                under = f"{labels[score.attack]} at {format_eps(score.eps)}" if score.eps else "no attack"
                writer.add_scalar(f"score/{under}", score.mean)
            _add_hparams(writer, config)


NO_TRACKERS = Trackers()
GROUPS = {  # of TensorBoard's tags; what is in none of them is a part of the loss
    "play": ("return", "return_sd", "return_attacked", "episodes"),
    "schedule": ("eps", "kappa", "exploration", "learning_rate", "met", "nominal_threshold", "attacked_threshold"),
    "speed": ("steps_per_second", "updates"),
}


def _group(name: str) -> str:
    if name.startswith("share_"):
        return "speed"
    return next((group for group, names in GROUPS.items() if name in names), "loss")


def _add_hparams(writer: Any, config: Config) -> None:
    """A row of the table of hyper-parameters. Not by `writer.add_hparams`: that also lists the metrics of the table,
    and of several such lists TensorBoard shows one."""
    from torch.utils.tensorboard.summary import hparams

    kinds = bool | int | float | str
    shown = {name: value if isinstance(value, kinds) else str(value) for name, value in flat(config).items()}
    _, start, _ = hparams(shown, {})
    writer.file_writer.add_summary(start)


def _wandb_run(project: str, training: TrainingFolder, config: Config) -> Any:
    """W&B keeps one run per folder, found again by its id; steps that it has already it does not take twice."""
    wandb = _wandb()
    known = store.once(training.wandb_file, lambda: {"id": uuid.uuid4().hex[:12]})
    about = {"project": project, "name": str(training.path), "config": dataclasses.asdict(config)}
    try:
        return wandb.init(id=known["id"], resume="allow", dir=str(training.path), settings={"silent": True}, **about)
    except wandb.Error as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise BclError(f"W&B does not start: {reason}", "'wandb login' first, or set WANDB_MODE=offline") from None


def _summary_writer() -> Any:
    install = "pip install 'tensorboard>=2.17'"
    return optional("torch.utils.tensorboard", "--tensorboard needs TensorBoard", install).SummaryWriter


def _wandb() -> Any:
    return optional("wandb", "--wandb needs Weights & Biases", "pip install 'wandb>=0.18'")
