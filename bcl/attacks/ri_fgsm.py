"""RI-FGSM and its forms with many starts, by what the policy really sees."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

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
        draws = Draws.of(generator, batch, looks)
        eps = eps if isinstance(eps, Tensor) else obs.new_full((), eps)
        rows = torch.arange(batch, device=obs.device)  # that are looked at
        if looks and eps.dim():
            rows = rows[eps.flatten() > 0]  # the others cannot move
        best = obs.clone()
        best_key = torch.full((batch,), self.starts * actions, device=obs.device)
        first = 0
        while first < self.starts:
            per_pass = DRAW * max(1, chunk // (DRAW * max(1, len(rows))))
            count = min(DRAW if looks and first == 0 else per_pass, self.starts - first)
            noise = draws.next(count, obs, rows)
            if len(rows):
                budgets = eps[rows] if eps.dim() else eps
                found, key = self._try(policy, obs[rows], clean[rows], rank[rows], budgets, noise, first)
                better = key < best_key[rows]
                best[rows] = torch.where(per_sample(better, obs), found, best[rows])
                best_key[rows] = torch.minimum(key, best_key[rows])
            if looks and len(rows) and first + count < self.starts:
                open_rows = best_key[rows] >= self.starts  # no start comes before one that ranks lowest
                if first == 0 and (proves := getattr(policy, "proves", None)):  # 64 starts look at every proof
                    open_rows &= ~proves(obs[rows], budgets)
                left = int(open_rows.sum())
                rows = rows[(~open_rows).argsort(stable=True)[: min(few_sizes(left), len(rows))]]
            first += count
        return best

    def _try(
        self, policy: AttackedPolicy, obs: Tensor, clean: Tensor, rank: Tensor, eps: Tensor, noise: Tensor, first: int
    ) -> tuple[Tensor, Tensor]:
        """Of the starts at `noise` (count, B or 1, *shape) in shares of eps, the chosen ones (B, *shape) and by what
        they were chosen (B,): the rank of the action reached, then the number of the start, counted from `first`."""
        count, batch = len(noise), len(obs)
        # In the type in which the policy computes, half the memory where that is half precision: it sees the same.
        images = obs.new_empty(count, *obs.shape, dtype=getattr(policy, "computes_in", obs.dtype))
        clean_copies = clean.expand(count, *clean.shape).flatten(0, 1)
        torch.addcmul(obs, noise, eps, out=images)
        _, _, gradient = ascent(CrossEntropy(), policy, images.flatten(0, 1), clean_copies)
        # As in `_step`, written over the points at which the gradients were taken.
        torch.addcmul(obs, noise, eps, value=-1, out=images)
        images.add_(gradient.view_as(images).sign(), alpha=ALPHA)
        lo, hi = (bound.to(images.dtype) for bound in Ball.around(policy, obs, eps))
        images.clamp_(lo, hi)
        reached = policy(images.flatten(0, 1)).argmax(dim=1).view(count, batch)
        order = torch.arange(first, first + count, device=obs.device).unsqueeze(1)
        key, which = (rank.gather(1, reached.T).T * self.starts + order).min(dim=0)
        return images[which, torch.arange(batch, device=obs.device)].to(obs.dtype), key


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


@dataclass(frozen=True)
class Draws:
    """Noise of starts, the same for all observations of a generator: each still sees independent ones."""

    generators: tuple[Generator, ...]
    rows: int
    """Observations of each generator."""
    alike: bool
    """All generators are in the same state: what one of them draws the others would draw too."""

    @classmethod
    def of(cls, generator: Randomness, batch: int, looks: bool) -> "Draws":
        """`looks`: at the state of generators, which a captured graph cannot."""
        generators = (generator,) if isinstance(generator, Generator) else tuple(generator)
        state = generators[0].get_state() if looks else None
        alike = state is not None and all(torch.equal(state, one.get_state()) for one in generators[1:])
        return cls(generators, batch // len(generators), len(generators) == 1 or alike)

    def next(self, count: int, obs: Tensor, rows: Tensor) -> Tensor:
        """(count, len(rows) or 1, *shape) U(-1, 1) for these rows; what comes next never depends on which they are."""
        drawing = self.generators[:1] if self.alike else self.generators
        noise = torch.stack([_uniform(count, obs, one) for one in drawing], dim=1)
        if self.alike:
            for one in self.generators[1:]:
                one.set_state(self.generators[0].get_state())
            return noise
        return noise[:, rows // self.rows]


def _uniform(count: int, obs: Tensor, generator: Generator) -> Tensor:
    """(count, *shape) U(-1, 1), drawn in parts, whose sizes decide what a GPU draws."""
    noise = obs.new_empty(count, *obs.shape[1:])
    for part in noise.split(DRAW):
        part.uniform_(-1, 1, generator=generator)
    return noise


def few_sizes(rows: int) -> int:
    """At least so many, and one of few numbers: libraries choose kernels anew for every size of a batch."""
    step = max(1, 1 << max(0, rows.bit_length() - 4))
    return -(-rows // step) * step


def _step(obs: Tensor, noise: Tensor, gradient: Tensor) -> Tensor:
    # the reference descends from +noise and negates, so elements without gradient keep -noise
    return (obs - noise).add_(gradient.sign(), alpha=ALPHA)  # still to be projected
