"""Deep-RL agents that keep playing well when an adversary tampers with what they see."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["BclError", "Policy", "__version__", "import_policy", "load", "make_env", "save"]

if TYPE_CHECKING:
    from bcl.envs import make_env
    from bcl.errors import BclError
    from bcl.policies import Policy
    from bcl.policies.files import load, save
    from bcl.policies.importers import import_policy

_HOMES = {
    "BclError": "bcl.errors",
    "Policy": "bcl.policies",
    "import_policy": "bcl.policies.importers",
    "load": "bcl.policies.files",
    "make_env": "bcl.envs",
    "save": "bcl.policies.files",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: PyTorch takes seconds, and 'bcl --help' should not.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'bcl' has no attribute '{name}'")
