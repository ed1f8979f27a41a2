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
    from bcl.api.evaluating import Certification, certify, evaluate
    from bcl.api.filming import Video, video
    from bcl.api.reporting import compare, report
    from bcl.api.training import Run, resume, train
    from bcl.api.workers import Workers
    from bcl.envs import make_env
    from bcl.errors import BclError
    from bcl.evaluation import Evaluation
    from bcl.policies import Policy
    from bcl.policies.files import save

_HOMES = {
    "BclError": "bcl.errors",
    "Certification": "bcl.api.evaluating",
    "Evaluation": "bcl.evaluation",
    "Policy": "bcl.policies",
    "Run": "bcl.api.training",
    "Video": "bcl.api.filming",
    "Workers": "bcl.api.workers",
    "certify": "bcl.api.evaluating",
    "compare": "bcl.api.reporting",
    "evaluate": "bcl.api.evaluating",
    "import_policy": "bcl.api.agents",
    "load": "bcl.api.agents",
    "make_env": "bcl.envs",
    "report": "bcl.api.reporting",
    "resume": "bcl.api.training",
    "save": "bcl.policies.files",
    "train": "bcl.api.training",
    "video": "bcl.api.filming",
    "wrap": "bcl.api.agents",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: PyTorch takes seconds, and 'bcl --help' should not.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'bcl' has no attribute '{name}'")
