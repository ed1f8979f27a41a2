"""Deep-RL agents that keep playing well when an adversary tampers with what they see."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from bcl.api.agents import import_policy, load, make_env, save, wrap
    from bcl.api.evaluating import Certification, certify, evaluate
    from bcl.api.listing import presets, zoo_agents
    from bcl.api.measuring import bench
    from bcl.api.showing import Report, RunStatus, Video, compare, report, status, video
    from bcl.api.training import RepeatedRun, Run, resume, train
    from bcl.api.workers import Workers
    from bcl.errors import BclError
    from bcl.evaluation import Evaluation
    from bcl.policies import Policy
    from bcl.result import Listing

_MODULES = {
    "bcl.api.agents": ("import_policy", "load", "make_env", "save", "wrap"),
    "bcl.api.evaluating": ("Certification", "certify", "evaluate"),
    "bcl.api.listing": ("presets", "zoo_agents"),
    "bcl.api.measuring": ("bench",),
    "bcl.api.showing": ("Report", "RunStatus", "Video", "compare", "report", "status", "video"),
    "bcl.api.training": ("RepeatedRun", "Run", "resume", "train"),
    "bcl.api.workers": ("Workers",),
    "bcl.errors": ("BclError",),
    "bcl.evaluation": ("Evaluation",),
    "bcl.policies": ("Policy",),
    "bcl.result": ("Listing",),
}
__all__ = ["__version__", *(name for names in _MODULES.values() for name in names)]


def __getattr__(name: str) -> Any:
    # Imported on first use: PyTorch takes seconds, and 'bcl --help' should not.
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'bcl' has no attribute '{name}'")
