"""Rows of metrics shown elsewhere too: TensorBoard, Weights & Biases. They read; metrics.jsonl is what counts."""

import contextlib
import dataclasses
import textwrap
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bcl.attacks import attack_label
from bcl.config import Config
from bcl.errors import BclError, MissingExtra
from bcl.evaluation import Score
from bcl.learners.task import Metrics
from bcl.quantities import format_eps
from bcl.runs import store
from bcl.settings import to_toml

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
                mirrors.append(stack.enter_context(_to_tensorboard(folder, config, step)))
            if self.wandb:
                mirrors.append(stack.enter_context(_to_wandb(self.wandb, folder, config)))

            def mirror(row: Metrics) -> None:
                for one in mirrors:
                    one(row)

            yield mirror

    def show(self, run: Path, config: Config, scores: Sequence[Score]) -> None:
        """The settings and the scores of a whole run, for TensorBoard's table of hyper-parameters."""
        if not self.tensorboard:
            return
        with _summary_writer()(str(run / "tensorboard")) as writer:
            found = {f"score/{_under(score)}": score.mean for score in scores}
            writer.add_hparams(_flat(dataclasses.asdict(config)), found, run_name=".")


NO_MIRRORS = Mirrors()
GROUPS = {  # of TensorBoard's tags; what is in none of them is a part of the loss
    "play": ("return", "return_sd", "return_attacked", "episodes"),
    "schedule": ("eps", "kappa", "exploration"),
    "speed": ("steps_per_second", "updates"),
}


@contextlib.contextmanager
def _to_tensorboard(folder: Path, config: Config, step: int) -> Iterator[Mirror]:
    """TensorBoard is told to forget the rows after `step`."""
    with _summary_writer()(str(folder / "tensorboard"), purge_step=step + 1) as writer:
        writer.add_text("settings", textwrap.indent(to_toml(config), "    "))  # to Markdown: code

        def mirror(row: Metrics) -> None:
            for name, value in _values(row).items():
                writer.add_scalar(f"{_group(name)}/{name}", value, row["step"])

        yield mirror


def _group(name: str) -> str:
    if name.startswith("share_"):
        return "speed"
    return next((group for group, names in GROUPS.items() if name in names), "loss")


def _under(score: Score) -> str:
    return f"{attack_label(score.attack)} at {format_eps(score.eps)}" if score.eps else "no attack"


def _flat(settings: dict[str, Any], where: str = "") -> dict[str, Any]:
    """Settings by their dotted names, as numbers and words."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{where}{name}.")
        else:
            flat[where + name] = value if isinstance(value, bool | int | float | str) else str(value)
    return flat


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
