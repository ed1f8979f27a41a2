"""Networks, the policy around them, and their files."""

from bcl.policies.policy import KINDS, Policy, PolicySpec, as_float, default_kind

__all__ = ["KINDS", "Policy", "PolicySpec", "as_float", "default_kind"]
