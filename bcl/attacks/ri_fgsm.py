"""RI-FGSM and its forms with many starts, by what the policy really sees."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bcl.attacks.noise import fill_uniform, uniform
from bcl.attacks.objectives import CrossEntropy, Objective, ascent, clean_scores
from bcl.attacks.threat import AttackedPolicy, Ball, Budget, Randomness, demand, per_sample

DRAW = 64  # starts whose noise is drawn at once
ALPHA = 0.375  # saturates for eps < 0.1875: every element with a gradient lands on +eps or -eps


@dataclass(frozen=True)
class RIFGSM:
    """One full step along the gradient taken at a random point of the ball."""

    objective: Objective = CrossEntropy()

    def __call__(self, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        noise = uniform(obs, eps, generator)
        clean = clean_scores(self.objective, policy, obs)
        _, _, gradient = ascent(self.objective, policy, obs + noise, clean)  # may lie outside the box
        return _step(obs, noise, gradient)


@dataclass(frozen=True)
class _ManyStarts(ABC):
    starts: int = 1000
    chunk: int = field(default=0, repr=False, compare=False)
    """Images per forward pass, though never less than 64 whole batches; bounds memory, not the result. 0: by device."""
    leaves_settled: bool = field(default=True, repr=False, compare=False)
    """Observations for which no later start can be chosen are left alone, because of what was reached or because the
    policy `proves` that no other action can be; not inside a captured graph."""

    def __post_init__(self) -> None:
        demand("at least 1", starts=self.starts)
        demand("at least 0", chunk=self.chunk)

    def __call__(self, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        clean = policy(obs)
        return self.scan(policy, obs, clean, self.rank(clean), eps, generator)

    @abstractmethod
    def rank(self, clean: Tensor) -> Tensor:
        """(B, A) which actions are wanted, 0 most, by their clean scores."""

    def scan(
        self, policy: AttackedPolicy, obs: Tensor, clean: Tensor, rank: Tensor, eps: Budget, generator: Randomness
    ) -> Tensor:
        """The earliest start among those reaching the lowest-ranked action; only the best so far is kept."""
        batch, actions = clean.shape
        looks = self.leaves_settled and not (obs.is_cuda and torch.cuda.is_current_stream_capturing())
        chunk = self.chunk or (20_480 if obs.is_cuda else 2_048)
        rows = torch.arange(batch, device=obs.device)  # for which a later start may be chosen
        if looks and isinstance(eps, Tensor) and eps.dim():
            rows = rows[eps.flatten() > 0]  # the others cannot move
        best = obs.clone()
        best_key = torch.full((batch,), self.starts * actions, device=obs.device)
        first = 0
        while first < self.starts:
            per_pass = DRAW * max(1, chunk // (DRAW * max(1, len(rows))))
            count = min(DRAW if looks and first == 0 else per_pass, self.starts - first)
            noise = _draw(obs, rows, count, generator)
            if len(rows):
                budgets = eps[rows] if isinstance(eps, Tensor) and eps.dim() else eps
                found, key = self._try(policy, obs[rows], clean[rows], rank[rows], budgets, noise, first)
                better = key < best_key[rows]
                best[rows] = torch.where(per_sample(better, obs), found, best[rows])
                best_key[rows] = torch.minimum(key, best_key[rows])
            if looks and len(rows) and first + count < self.starts:
                open_rows = best_key[rows] >= self.starts  # no start comes before one that ranks lowest
                if first == 0 and (proves := getattr(policy, "proves", None)):  # 64 starts look at every proof
                    open_rows &= ~proves(obs[rows], budgets)
                rows = rows[open_rows]
            first += count
        return best

    def _try(
        self, policy: AttackedPolicy, obs: Tensor, clean: Tensor, rank: Tensor, eps: Budget, noise: Tensor, first: int
    ) -> tuple[Tensor, Tensor]:
        """Of the starts at `noise` (in shares of eps), the chosen ones (B, *shape) and by what they were chosen (B,):
        the rank of the action reached, then the number of the start, counted from `first`."""
        count, batch = noise.shape[:2]
        ball = Ball.around(policy, obs, eps)
        clean_copies = clean.expand(count, *clean.shape).flatten(0, 1)
        points = _start(obs, noise, eps)
        _, _, gradient = ascent(CrossEntropy(), policy, points.flatten(0, 1), clean_copies)
        del points  # what follows is as large
        found = _candidates(obs, noise, gradient, ball)
        reached = policy(found.flatten(0, 1)).argmax(dim=1).view(count, batch)
        order = torch.arange(first, first + count, device=obs.device).unsqueeze(1)
        key, which = (rank.gather(1, reached.T).T * self.starts + order).min(dim=0)
        return found[which, torch.arange(batch, device=obs.device)], key


@dataclass(frozen=True)
class Multi(_ManyStarts):
    """RI-FGSM from many starts: the first that changes the action, else the first."""

    def rank(self, clean: Tensor) -> Tensor:
        """1 for the clean action, which is not wanted."""
        return torch.zeros_like(clean).scatter(1, clean.argmax(dim=1, keepdim=True), 1).long()


@dataclass(frozen=True)
class MultiT(_ManyStarts):
    """RI-FGSM from many starts: the first that reaches the action with the lowest clean score of all reached."""

    def rank(self, clean: Tensor) -> Tensor:
        """0 for the lowest score."""
        return clean.argsort(dim=1, stable=True).argsort(dim=1)


@dataclass(frozen=True)
class StartsTogether:
    """Multi and Multi-T with as many starts, whose rows are one batch: each finds what it would find alone."""

    attacks: tuple[Multi | MultiT, ...]
    """One for each generator, and of an equal share of the rows."""

    @property
    def leaves_settled(self) -> bool:
        """As all of them do."""
        return self.attacks[0].leaves_settled

    def __call__(self, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        clean = policy(obs)
        parts = clean.split(len(obs) // len(self.attacks))
        rank = torch.cat([attack.rank(part) for attack, part in zip(self.attacks, parts, strict=True)])
        return self.attacks[0].scan(policy, obs, clean, rank, eps, generator)


def _draw(obs: Tensor, rows: Tensor, count: int, generator: Randomness) -> Tensor:
    """(count, len(rows), *shape) U(-1, 1) of some rows, drawn for all of them: the result never depends on which."""
    noise = obs.new_empty(count, len(rows), *obs.shape[1:])
    for part in noise.split(DRAW):
        if len(rows) == len(obs):
            fill_uniform(part, generator)
            continue
        whole = obs.new_empty(len(part), *obs.shape)
        fill_uniform(whole, generator)
        part.copy_(whole[:, rows])
    return noise


def _start(obs: Tensor, noise: Tensor, eps: Budget) -> Tensor:
    """Where gradients are taken; `noise` in shares of eps becomes that noise."""
    return obs + noise.mul_(eps)


def _candidates(obs: Tensor, noise: Tensor, gradient: Tensor, ball: Ball) -> Tensor:
    return ball.project(_step(obs, noise, gradient.view_as(noise)))


def _step(obs: Tensor, noise: Tensor, gradient: Tensor) -> Tensor:
    # the reference descends from +noise and negates, so elements without gradient keep -noise
    return (obs - noise).add_(gradient.sign(), alpha=ALPHA)  # still to be projected
