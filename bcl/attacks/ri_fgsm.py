"""RI-FGSM and its forms with many starts, by what the policy really sees."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from bcl.attacks.alike import first_alike
from bcl.attacks.noise import uniform
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
    """Images per forward pass, or 64 starts of a whole batch if that is more; bounds memory, not the result. 0: by
    device."""
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
        noise = StartNoise(generator, obs, looks)
        eps = eps if isinstance(eps, Tensor) else obs.new_full((), eps)
        many = looks and self.starts > DRAW  # worth a wait for the device
        proves = getattr(policy, "proves", None) if many else None
        proven = proves(obs, eps) if proves else None  # where no start changes the action
        rows = torch.arange(batch, device=obs.device)  # that are looked at
        same_as = first_alike(obs, eps) if many and noise.alike else rows  # has the same candidates
        if looks and eps.dim():
            rows = rows[eps.flatten() > 0]  # the others cannot move
        if many:
            rows = rows[same_as[rows] == rows]
        left = len(rows)  # of these, for which a later start may be chosen; the others fill up the batch
        choosing, places = _who_shares(same_as, rows) if len(rows) < batch else (rows, rows)
        best = obs.clone()
        best_key = torch.full((batch,), self.starts * actions, device=obs.device)
        first = 0
        while first < self.starts:
            count = DRAW * max(1, chunk // (DRAW * max(1, len(rows))))
            if looks and first < DRAW < self.starts:
                count = DRAW - 1 if first else 1  # of a proven action the first is the result; few change late
            count = min(count, self.starts - first)
            shares = noise.next(count, rows)
            if len(rows):
                budgets = eps[rows] if eps.dim() else eps
                images, reached = self._try(policy, obs[rows], clean[rows], budgets, shares)
                order = torch.arange(first, first + count, device=obs.device).unsqueeze(1)
                keys = rank[choosing].gather(1, reached[:, places].T).T * self.starts + order
                key, which = keys.min(dim=0)
                better = key < best_key[choosing]
                found = images[which, places].to(obs.dtype)
                best[choosing] = torch.where(per_sample(better, obs), found, best[choosing])
                best_key[choosing] = torch.where(better, key, best_key[choosing])
            if looks and len(rows) and first + count < self.starts:
                waits = best_key >= self.starts  # else no start comes before one that ranks lowest
                waits = waits if proven is None else waits & ~proven
                waits = torch.zeros_like(same_as).scatter_reduce(0, same_as, waits.long(), "amax")[rows] > 0
                waits[left:] = False
                left = int(waits.sum())
                rows = rows[(~waits).long().argsort(stable=True)[: rounded_up(left)]]
                choosing, places = _who_shares(same_as, rows[:left])
            first += count
        return best

    def _try(
        self, policy: AttackedPolicy, obs: Tensor, clean: Tensor, eps: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What the starts at `noise` (count, B or 1, *shape) in shares of eps lead to (count, B, *shape), and the
        actions reached there (count, B)."""
        count, batch = len(noise), len(obs)
        lo, hi = Ball.around(policy, obs, eps)
        # In the type in which the policy computes, half the memory where that is half precision.
        kind = getattr(policy, "computes_in", obs.dtype)
        middle, lo, hi, noise, eps = (x.to(kind) for x in (obs, lo, hi, noise, eps))
        clean_copies = clean.expand(count, *clean.shape).flatten(0, 1)
        images = torch.addcmul(middle, noise, eps)
        _, _, gradient = ascent(CrossEntropy(), policy, images.flatten(0, 1), clean_copies)
        # As in `_step`, written over the points at which the gradients were taken.
        torch.addcmul(middle, noise, eps, value=-1, out=images)
        images.add_(gradient.view_as(images).sign(), alpha=ALPHA)
        images.clamp_(lo, hi)
        return images, policy(images.flatten(0, 1)).argmax(dim=1).view(count, batch)


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


class StartNoise:
    """Random starts, the same for all observations of a generator: each still sees independent ones."""

    def __init__(self, generator: Randomness, obs: Tensor, looks: bool) -> None:
        """`looks`: at the states of generators, which a captured graph cannot. Alike, they would draw the same, and one
        does it for all."""
        self._generators = (generator,) if isinstance(generator, Generator) else tuple(generator)
        self._obs = obs
        first, *others = self._generators
        self.alike = not others or (
            looks and all(torch.equal(first.get_state(), other.get_state()) for other in others)
        )
        self._left = obs.new_empty(0)

    def next(self, count: int, rows: Tensor) -> Tensor:
        """(count, len(rows) or 1, *shape) U(-1, 1) for these rows; which they are does not change what comes next."""
        missing = max(0, count - len(self._left))
        drawn = [self._draw() for _ in range(-(-missing // DRAW))]
        noise = torch.cat([self._left, *drawn]) if len(self._left) else torch.cat(drawn)
        noise, self._left = noise[:count], noise[count:]
        return noise if self.alike else noise[:, rows * len(self._generators) // len(self._obs)]

    def _draw(self) -> Tensor:
        """(DRAW, generators or 1, *shape), always as many: on a GPU sizes decide what is drawn."""
        first, *others = self._generators
        drawing = (first,) if self.alike else self._generators
        noise = [self._obs.new_empty(DRAW, *self._obs.shape[1:]).uniform_(-1, 1, generator=one) for one in drawing]
        for other in others if self.alike else ():
            other.set_state(first.get_state())
        return torch.stack(noise, dim=1)


def _who_shares(same_as: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The observations that are the same as one of these rows, and which of them each is the same as."""
    places = torch.full_like(same_as, -1)
    places[rows] = torch.arange(len(rows), device=rows.device)
    places = places[same_as]
    found = (places >= 0).nonzero().squeeze(1)
    return found, places[found]


def rounded_up(rows: int) -> int:
    """At least so many, and one of few numbers: libraries choose kernels anew for every size of a batch."""
    step = max(1, 1 << max(0, rows.bit_length() - 4))
    return -(-rows // step) * step


def _step(obs: Tensor, noise: Tensor, gradient: Tensor) -> Tensor:
    # the reference descends from +noise and negates, so elements without gradient keep -noise
    return (obs - noise).add_(gradient.sign(), alpha=ALPHA)  # still to be projected
