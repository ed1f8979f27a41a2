"""What an attack maximises: frozen objects mapping scores (B, A) and clean scores (B, A) to one value per sample (B,).

Objectives with data of their own (actions, values) also take batches that stack whole copies of theirs.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from bcl.attacks.threat import AttackedPolicy
from bcl.errors import BclError


class Objective(Protocol):
    """Per-sample values to ascend. One that never looks at `clean` says so by `ignores_clean = True`."""

    def __call__(self, scores: Tensor, clean: Tensor, /) -> Tensor: ...


@dataclass(frozen=True)
class CrossEntropy:
    """Away from the clean action: -log softmax(z)_a. Its gradient vanishes where softmax saturates."""

    def __call__(self, scores: Tensor, clean: Tensor, /) -> Tensor:
        return F.cross_entropy(scores, clean.argmax(dim=1), reduction="none")


@dataclass(frozen=True)
class MinBest:
    """Towards the action with the lowest clean score."""

    def __call__(self, scores: Tensor, clean: Tensor, /) -> Tensor:
        return -F.cross_entropy(scores, clean.argmin(dim=1), reduction="none")


@dataclass(frozen=True)
class Margin:
    """Best other score minus the clean action's: positive is a flip, and nothing saturates."""

    def __call__(self, scores: Tensor, clean: Tensor, /) -> Tensor:
        return -lead(scores, clean.argmax(dim=1))


@dataclass(frozen=True)
class KL:
    """KL(clean policy || perturbed policy). Its gradient is zero at the clean point: start elsewhere."""

    def __call__(self, scores: Tensor, clean: Tensor, /) -> Tensor:
        log_clean = clean.log_softmax(dim=1)
        return (log_clean.exp() * (log_clean - scores.log_softmax(dim=1))).sum(dim=1)


@dataclass(frozen=True)
class TargetValue:
    """The paper's DQN training attack: descend softmax(z(s + d)) . values, with values = Q_target(s)."""

    ignores_clean: ClassVar[bool] = True
    values: Tensor = field(repr=False, compare=False)  # (B, A)

    def __call__(self, scores: Tensor, _clean: Tensor, /) -> Tensor:
        probabilities = scores.softmax(dim=1).view(-1, *self.values.shape)
        return -(probabilities * self.values).sum(dim=-1).flatten()


@dataclass(frozen=True)
class OwnValue:
    """The paper's PPO training attack: descend softmax(z) . z through both factors; shifting all z counts too."""

    ignores_clean: ClassVar[bool] = True

    def __call__(self, scores: Tensor, _clean: Tensor, /) -> Tensor:
        return -(scores.softmax(dim=1) * scores).sum(dim=1)


@dataclass(frozen=True)
class AwayFromActions:
    """Cross-entropy away from given actions, such as the sampled ones that the reference attacks on Jumper."""

    ignores_clean: ClassVar[bool] = True
    actions: Tensor = field(repr=False, compare=False)  # (B,)

    def __call__(self, scores: Tensor, _clean: Tensor, /) -> Tensor:
        return F.cross_entropy(scores, _stacked(self.actions, scores), reduction="none")


@dataclass(frozen=True)
class TowardActions:
    """The lead of a given action over the best other: positive once that action is reached."""

    ignores_clean: ClassVar[bool] = True
    actions: Tensor = field(repr=False, compare=False)  # (B,)

    def __call__(self, scores: Tensor, _clean: Tensor, /) -> Tensor:
        return lead(scores, _stacked(self.actions, scores))


def clean_scores(objective: Objective, policy: AttackedPolicy, obs: Tensor) -> Tensor:
    """(B, A) what the objective compares with; nothing where it does not: a forward pass saved."""
    return obs.new_empty(len(obs), 0) if getattr(objective, "ignores_clean", False) else policy(obs)


def ascent(objective: Objective, policy: AttackedPolicy, obs: Tensor, clean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (B, A), values (B,) and the direction in `obs` in which the values rise. Gradients are scaled, so that
    tiny ones survive half precision; their signs, all that attacks use, stay."""
    with torch.enable_grad():
        obs = obs.detach().requires_grad_()
        scores = policy(obs)
        if not scores.requires_grad:
            raise BclError("the policy cannot be differentiated", "use an attack without gradients, such as square")
        at_scores = scores.detach().requires_grad_()
        values = objective(at_scores, clean)
        (rise,) = torch.autograd.grad(values.sum(), at_scores)
        (direction,) = torch.autograd.grad(scores, obs, _scaled(rise))
    return scores.detach(), values.detach(), direction


def _scaled(rise: Tensor) -> Tensor:
    return rise / rise.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(rise.dtype).tiny)


def flips(scores: Tensor, clean: Tensor) -> Tensor:
    """(B,) whether the perturbed policy acts differently."""
    return scores.argmax(dim=1) != clean.argmax(dim=1)


def lead(scores: Tensor, actions: Tensor) -> Tensor:
    """(B,) how far the score of an action is above the best other one."""
    index = actions.unsqueeze(1)
    others = scores.scatter(1, index, float("-inf"))
    return scores.gather(1, index).squeeze(1) - others.amax(dim=1)


def _stacked(actions: Tensor, scores: Tensor) -> Tensor:
    return actions.repeat(len(scores) // len(actions))
