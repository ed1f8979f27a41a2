"""The threat model: an observation may move by at most eps per element and must stay a valid observation."""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Generator, Tensor

from bcl.errors import BclError, ConfigError
from bcl.settings import fits

Budget: TypeAlias = float | Tensor
"""eps in observation units: 0-d, which a captured graph can follow, or one per observation."""


Randomness: TypeAlias = Generator | Sequence[Generator]
"""Where attacks draw from, by `bcl.attacks.noise`; several share the rows of a batch equally, each as if alone."""


class AttackedPolicy(Protocol):
    """Scores per action, (B, *shape) float -> (B, A), and the box of valid observations (may be infinite)."""

    @property
    def low(self) -> Tensor: ...

    @property
    def high(self) -> Tensor: ...

    def __call__(self, obs: Tensor, /) -> Tensor: ...


class Attack(Protocol):
    """A frozen dataclass, called by `perturb`; scores are stored under its class, fields and, of one's own, source."""

    def __call__(self, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor: ...


@dataclass(frozen=True)
class LowestScored:
    """Observations stay as they are, and `bcl.evaluation` plays the action with the lowest action score."""

    def __call__(self, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        return obs


class Ball(NamedTuple):
    """The observations an adversary may show: elementwise between `lo` and `hi`."""

    lo: Tensor
    hi: Tensor

    @classmethod
    def around(cls, policy: AttackedPolicy, obs: Tensor, eps: Budget) -> "Ball":
        """The eps-ball cut to the box; where they do not meet, the ball's point nearest to the box."""
        below = _no_further_than(eps, obs - eps, obs)
        above = _no_further_than(eps, obs + eps, obs)
        lo, hi = (torch.clamp(bound.to(obs), below, above) for bound in (policy.low, policy.high))
        return cls(lo, hi)

    def corner(self, up: Tensor) -> Tensor:
        """Every element moved as far as it may be, up or down."""
        return torch.where(up, self.hi, self.lo)

    def project(self, obs: Tensor) -> Tensor:
        """The nearest observation the adversary may show."""
        return torch.clamp(obs, self.lo, self.hi)


def perturb(
    attack: Attack, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness, *, check: bool = True
) -> Tensor:
    """The perturbed copy of `obs` (B, *shape), inside ball and box whatever the attack does; `check=False` looks at no
    tensor value, for which the host would wait."""
    _refuse_bad_arguments(obs, eps, generator, check)
    if obs.numel() == 0 or (not isinstance(eps, Tensor) and eps == 0):
        return obs.detach().clone()
    with torch.inference_mode(False), torch.no_grad():
        if isinstance(eps, Tensor) and eps.dim():
            eps = per_sample(eps, obs)
        obs = obs.clone()  # attacks may differentiate a copy, never an inference-mode tensor
        found = _run_attack(attack, policy, obs, eps, generator)
        perturbed = Ball.around(policy, obs, eps).project(found)
    if check and not perturbed.isfinite().all():
        broken = not policy(obs).isfinite().all()
        hint = (
            "the policy's action scores are not finite" if broken else "its code, or the policy's gradients, made them"
        )
        raise BclError(f"{attack} made NaN observations", hint)
    return perturbed


def _run_attack(attack: Attack, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness) -> Tensor:
    """What the attack found; errors and wrong shapes of a user's are one sentence."""
    try:
        found = attack(policy, obs, eps, generator)
    except BclError:
        raise
    except Exception as error:
        if type(attack).__module__.startswith("bcl."):
            raise
        sentence = BclError(f"the attack {attack} failed ({str(error) or type(error).__name__})", "correct its code")
        sentence.add_note(traceback.format_exc().rstrip())
        raise sentence from None
    if not isinstance(found, Tensor) or found.shape != obs.shape:
        answer = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise BclError(f"the attack {attack} returned {answer}", f"return a tensor of shape {tuple(obs.shape)}")
    return found


def demand(condition: str, **settings: float) -> None:
    """Refuse a setting by its name unless it is e.g. "at least 1"."""
    for name, value in settings.items():
        if not fits(value, condition):
            raise ConfigError(f"{name} = {value} is out of range", f"it must be {condition}")


def per_sample(values: Tensor, obs: Tensor) -> Tensor:
    """(B,) reshaped so that it broadcasts over (B, *shape)."""
    return values.view(-1, *[1] * (obs.dim() - 1))


def per_copy(eps: Budget, copies: int) -> Budget:
    """The budgets of a batch, as `perturb` shapes them, for `copies` of it."""
    return eps.repeat(copies, *[1] * (eps.dim() - 1)) if isinstance(eps, Tensor) and eps.dim() else eps


def _no_further_than(eps: Budget, edge: Tensor, centre: Tensor) -> Tensor:
    # rounding can put the edge half a float outside the ball, which is much for large observations
    return torch.where((edge - centre).abs() > eps, torch.nextafter(edge, centre), edge)


def _refuse_bad_arguments(obs: Tensor, eps: Budget, generator: Randomness, check: bool) -> None:
    if obs.dtype not in (torch.float32, torch.float64):
        raise BclError(f"observations are {obs.dtype}", "attacks need float32 or float64; images in [0, 1]")
    drawn_on = (generator if isinstance(generator, Generator) else generator[0]).device
    if drawn_on.type != obs.device.type:
        raise BclError(f"the generator is on {drawn_on}, the observations on {obs.device}", "put both on one")
    if isinstance(eps, Tensor) and eps.dim() and eps.shape != obs.shape[:1]:
        raise BclError(f"budgets of shape {tuple(eps.shape)} for {len(obs)} observations", "give one, or one each")
    if check or not isinstance(eps, Tensor):
        budgets = eps.flatten().tolist() if isinstance(eps, Tensor) else [eps]
        for budget in budgets:
            if not 0 <= budget <= 1:
                raise ConfigError(f"eps = {budget} is outside [0, 1]", "write it like 3/255 or 0.03")
    if check:
        refuse_not_finite(obs)


def refuse_not_finite(obs: Tensor) -> None:
    """Refuse observations (B, *shape) of which one has an element that is no finite number."""
    finite = obs.isfinite().flatten(1).all(dim=1)
    if not finite.all():
        what = f"observation {int((~finite).nonzero()[0])} of {len(obs)} has NaN or infinite elements"
        raise BclError(what, "look at the environment")
