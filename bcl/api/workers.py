"""The options of commands that train: which processes or machines do the work, and on which device."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bcl.api import check, given
from bcl.errors import ConfigError
from bcl.runs.executors import JudgeBeside

if TYPE_CHECKING:
    from bcl.experiment import Dispatcher
    from bcl.experiment.trackers import Trackers
    from bcl.runs.executors import Executor

Executors = Literal["local", "ray"]


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Where training runs and evaluations happen."""

    device: str = "auto"
    """auto, cpu or cuda."""
    executor: Executors = "local"
    """This machine, or a Ray cluster."""
    parallel: int = 1
    """Runs and evaluations at once on this machine; they share its GPU."""
    judge_beside: JudgeBeside = "auto"
    """Without --parallel, in a curriculum: play the scores of a run in a second process while the run that probably
    comes next trains. Decisions are the same. auto: on a GPU, for Atari and Procgen."""
    ray_address: str | None = None
    """`auto`, host:port or ray://host:port; without it a cluster of this machine alone is started."""
    ray_cpus: float = 1.0
    """CPUs per run on the cluster."""
    ray_gpus: float = 0.0
    """GPUs per run on the cluster; a part such as 0.25 shares one."""
    tensorboard: bool = False
    """Mirror the metrics for TensorBoard, in a folder tensorboard beside them."""
    wandb: str = ""
    """Mirror the metrics to this Weights & Biases project; needs the package and a login, or WANDB_MODE=offline."""

    def __post_init__(self) -> None:
        check(Workers, vars(self))
        given("device", self.device, str, "auto, cpu or cuda")
        if self.ray_address is not None:
            given("ray_address", self.ray_address, str, "give auto, host:port or ray://host:port")
        given("wandb", self.wandb, str, "give the name of a project")

    @property
    def local(self) -> bool:
        """Whether this machine does the work."""
        return self.executor == "local"

    def worker_device(self) -> str:
        """The device that agents are trained on, here or on the cluster."""
        from bcl.api.agents import pick_device

        if self.ray_cpus < 0 or self.ray_gpus < 0:
            raise ConfigError("--ray-cpus and --ray-gpus cannot be negative", "say what one run needs")
        if self.local and (self.ray_address or self.ray_gpus or self.ray_cpus != Workers.ray_cpus):
            raise ConfigError("options of a Ray cluster were given without --executor ray", "add --executor ray")
        if self.parallel < 1 or (self.parallel > 1 and not self.local):
            hint = "give 1 or more; with --executor ray leave it out"
            raise ConfigError(f"--parallel {self.parallel} is not possible here", hint)
        if self.judge_beside == "on" and (self.parallel > 1 or not self.local):
            what = "--judge-beside on is for one run at a time"
            raise ConfigError(what, "leave it out, or --parallel and --executor")
        if self.local:
            return str(pick_device(self.device))
        wanted = "cuda" if self.ray_gpus > 0 else "cpu"
        if self.device not in ("auto", wanted):
            raise ConfigError(f"--device {self.device} does not fit --ray-gpus {self.ray_gpus:g}", "leave one out")
        return wanted

    def options(self) -> list[str]:
        """What was chosen, as words of a command line."""
        chosen = []
        for field in dataclasses.fields(Workers):
            value = getattr(self, field.name)
            if value != field.default:
                name = "--" + field.name.replace("_", "-")
                chosen += [name] if value is True else [name, str(value)]
        return chosen

    def dispatcher(
        self, interrupted: Callable[[], bool], tick: Callable[[], None], say: Callable[[str], None]
    ) -> "Dispatcher":
        """What gives the work to an executor."""
        from bcl.experiment import Dispatcher
        from bcl.runs.executors import Watch

        device = self.worker_device()  # refuses what does not fit together
        watch = Watch(interrupted, tick, say)
        return Dispatcher(self.make_executor(), device, watch, self.trackers(), self.judge_beside)

    def trackers(self) -> "Trackers":
        """Where metrics are shown besides their file."""
        from bcl.experiment.trackers import Trackers

        return Trackers(self.tensorboard, self.wandb)

    def make_executor(self) -> "Executor":
        """What runs jobs."""
        from bcl.experiment.worker import MODULES
        from bcl.runs.executors import InThisProcess, Processes

        if not self.local:
            from bcl.runs.ray_executor import RayCluster

            return RayCluster(self.ray_address, self.ray_cpus, self.ray_gpus)
        return InThisProcess() if self.parallel == 1 else Processes(self.parallel, MODULES)
