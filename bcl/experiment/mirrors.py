"""Rows of metrics shown elsewhere too: TensorBoard, Weights & Biases. They read; metrics.jsonl is what counts."""

import contextlib
import dataclasses
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bcl.config import Config
from bcl.errors import BclError, MissingExtra
from bcl.learners.task import Metrics
from bcl.runs import store

Mirror = Callable[[Metrics], None]


@dataclass(frozen=True)
class Mirrors:
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
    def open(self, folder: Path, config: Config, step: int) -> Iterator[Mirror]:
        """What takes the rows of the training run in `folder` that follow `step`."""
        with contextlib.ExitStack() as stack:
            mirrors = list[Mirror]()
            if self.tensorboard:
                mirrors.append(stack.enter_context(_to_tensorboard(folder, step)))
            if self.wandb:
                mirrors.append(stack.enter_context(_to_wandb(self.wandb, folder, config)))

            def mirror(row: Metrics) -> None:
                for one in mirrors:
                    one(row)

            yield mirror


NO_MIRRORS = Mirrors()


@contextlib.contextmanager
def _to_tensorboard(folder: Path, step: int) -> Iterator[Mirror]:
    """TensorBoard is told to forget the rows after `step`."""
    with _summary_writer()(str(folder / "tensorboard"), purge_step=step + 1) as writer:

        def mirror(row: Metrics) -> None:
            for name, value in _values(row).items():
                writer.add_scalar(name, value, row["step"])

        yield mirror


@contextlib.contextmanager
def _to_wandb(project: str, folder: Path, config: Config) -> Iterator[Mirror]:
    """W&B keeps one run per folder, found again by its id; steps that it has already it does not take twice."""
    wandb = _wandb()
    known = store.once(folder / "wandb.json", lambda: {"id": uuid.uuid4().hex[:12]})
    about = {"project": project, "name": str(folder), "config": dataclasses.asdict(config)}
    try:
        run = wandb.init(id=known["id"], resume="allow", dir=str(folder), settings={"silent": True}, **about)
    except wandb.Error as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise BclError(f"W&B does not start: {reason}", "'wandb login' first, or set WANDB_MODE=offline") from None
    with run:
        yield lambda row: run.log(_values(row), step=int(row["step"] or 0))


def _values(row: Metrics) -> Metrics:
    return {name: value for name, value in row.items() if value is not None and name != "step"}


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtra("--tensorboard needs TensorBoard", "pip install 'tensorboard>=2.17'") from None
    return SummaryWriter


def _wandb() -> Any:
    try:
        import wandb
    except ImportError:
        raise MissingExtra("--wandb needs Weights & Biases", "pip install 'wandb>=0.18'") from None
    return wandb
