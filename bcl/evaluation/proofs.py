"""What is proven while episodes are played: an action that no attack can change need not be attacked."""

from collections.abc import Callable

import torch
from torch import Tensor

from bcl.attacks.threat import AttackedPolicy, Budget, per_sample
from bcl.bounds import Method, certified, full_precision, input_box, margins
from bcl.device import Graphed
from bcl.policies import Policy

COMPARE_EVERY = 32  # steps at which proven actions are attacked all the same
PASSES = 2  # through the network, forth and back, that proofs by intervals take as long as


def quick_method(policy: Policy) -> Method:
    """Others take seconds a state on IMPALA."""
    return "ibp" if policy.spec.kind == "impala" else "crown-ibp"


def proven(
    policy: Policy, obs: Tensor, eps: Budget, scores: Tensor | None = None, method: Method | None = None
) -> Tensor:
    """(N,) where no observation within the budgets, as attacks have them, changes the action."""
    with torch.no_grad(), full_precision():
        scores = policy(obs) if scores is None else scores
        lower, upper = input_box(obs, eps, policy.low, policy.high)
        clean = scores.argmax(dim=1)
        margin = margins(policy.chain(), lower, upper, clean, method or quick_method(policy))
    return certified(margin, clean, scores)


class GraphedProof:
    """Where no observation within the budgets changes the action; on a GPU a captured graph of hundreds of kernels."""

    def __init__(self, policy: Policy, obs: Tensor) -> None:
        self._policy = policy
        self._obs = torch.empty_like(obs)  # fixed places, from which the graph reads
        self._eps = per_sample(obs.new_empty(len(obs)), obs)
        self._graph = Graphed(self._run, enabled=obs.is_cuda)

    def __call__(self, obs: Tensor, eps: Budget) -> Tensor:
        self._obs.copy_(obs)
        self._eps.copy_(torch.as_tensor(eps))
        return self._graph()

    def _run(self) -> Tensor:
        return proven(self._policy, self._obs, self._eps)


class OpenRows:
    """Which of the images an attack has to look at, on a CPU: not those of copies whose episodes are done, nor, while
    that saves more than it takes, those whose action is proven by intervals. Every 32nd step has all that count: there
    evaluations compare what attacks did with proofs. The network is one of ours: each image is by itself, and every
    layer has bounds."""

    def __init__(self, policy: Policy, passes: int, counting: Callable[[], Tensor] | None) -> None:
        """`passes`: through the network, that the attack makes; `counting`: (N,) which copies have episodes left, where
        what the others do is of no account."""
        self._policy = policy
        self._passes = passes
        self._counting = counting
        self._steps = 0
        self._saves = False

    def __call__(self, obs: Tensor, eps: Budget, scores: Tensor) -> Tensor:
        """(N,) true where it has to."""
        open_rows = self._counting() if self._counting else torch.ones(len(obs), dtype=torch.bool)
        compares = self._steps % COMPARE_EVERY == 0
        self._steps += 1
        if self._passes > PASSES and (self._saves or compares) and open_rows.any():
            eps = per_sample(torch.as_tensor(eps, dtype=obs.dtype).expand(len(obs)), obs)
            closed = proven(self._policy, obs[open_rows], eps[open_rows], scores[open_rows], "ibp")
            self._saves = closed.double().mean().item() * self._passes > PASSES
            if not compares:
                open_rows[open_rows.clone()] = ~closed
        return open_rows


class OfOpenRows:
    """A policy that is computed for open rows alone. The others, whose actions are decided, score 0 whatever they see:
    an attack leaves them where it begins."""

    def __init__(self, policy: AttackedPolicy, open_rows: Tensor, num_actions: int) -> None:
        self._policy = policy
        self._open_rows = open_rows
        self._num_actions = num_actions
        self.low = policy.low
        self.high = policy.high

    def __call__(self, obs: Tensor) -> Tensor:
        """(k * N, A) for k copies of the batch, one after the other, as all attacks of this package have them."""
        if len(obs) % len(self._open_rows):
            raise ValueError(f"{len(obs)} rows are no copies of {len(self._open_rows)}")
        zeros = 0 * obs.flatten(1)[:, :1].expand(-1, self._num_actions)  # attacks ask for their gradient
        rows = self._open_rows.repeat(len(obs) // len(self._open_rows)).nonzero().squeeze(1)
        return zeros.index_copy(0, rows, self._policy(obs[rows])) if len(rows) else zeros
