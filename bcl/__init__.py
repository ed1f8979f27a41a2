"""Deep-RL agents that keep playing well when an adversary tampers with what they see."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "BclError",
    "Certification",
    "Evaluation",
    "Policy",
    "Run",
    "Video",
    "Workers",
    "__version__",
    "certify",
    "compare",
    "evaluate",
    "import_policy",
    "load",
    "make_env",
    "report",
    "resume",
    "save",
    "train",
    "video",
    "wrap",
]

if TYPE_CHECKING:
    from bcl.api.agents import import_policy, load, wrap
    from bcl.api.evaluating import Certification
    from bcl.api.filming import Video
    from bcl.api.reporting import compare, report
    from bcl.api.signatures import certify, evaluate, video
    from bcl.api.training import Run, resume, train
    from bcl.api.workers import Workers
    from bcl.envs import make_env
    from bcl.errors import BclError
    from bcl.evaluation import Evaluation
    from bcl.policies import Policy
    from bcl.policies.files import save

_HOMES = {
    "bcl.api.agents": ("import_policy", "load", "wrap"),
    "bcl.api.filming": ("Video",),
    "bcl.api.evaluating": ("Certification",),
    "bcl.evaluation": ("Evaluation",),
    "bcl.api.reporting": ("compare", "report"),
    "bcl.api.signatures": ("certify", "evaluate", "video"),
    "bcl.api.training": ("Run", "resume", "train"),
    "bcl.api.workers": ("Workers",),
    "bcl.envs": ("make_env",),
    "bcl.errors": ("BclError",),
    "bcl.policies": ("Policy",),
    "bcl.policies.files": ("save",),
}


def __getattr__(name: str) -> Any:
    # Imported on first use: PyTorch takes seconds, and 'bcl --help' should not.
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'bcl' has no attribute '{name}'")
