"""Cells of an evaluation: episodes on all copies of a game at once while attacks change what is seen, several cells side by
side."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Generator, Tensor, nn

from bcl.attacks import Attack, Budget, CrossEntropy, Randomness, RowGenerators, perturb
from bcl.attacks.names import attack_label
from bcl.attacks.objectives import ascent
from bcl.bounds import Method, certified, full_precision, input_box, margins
from bcl.envs import Step, VectorEnv
from bcl.errors import BclError
from bcl.evaluation.courses import Courses, different
from bcl.evaluation.score import NO_ATTACK, Score
from bcl.graphs import Graphed
from bcl.policies import Policy, as_float
from bcl.quantities import format_eps

Protocol = Literal["fixed", "first"]
Precision = Literal["fast", "full"]
Progress = Callable[[int, int], None]
Choose = Callable[[Tensor], Tensor]
PROBE_EVERY = 32  # steps between looks at gradients and certificates
TOLERANCE = 1e-6  # rounding of a perturbation in float32


@dataclass(frozen=True)
class Cell:
    """One score to be had."""

    attack: Attack | None
    eps: float

    @property
    def label(self) -> str:
        """For progress lines."""
        return "nominal" if self.attack is None else f"{attack_label(repr(self.attack))} at {format_eps(self.eps)}"


def evaluate(
    policy: Policy,
    env: VectorEnv,
    attack: Attack | None,
    eps: float,
    *,
    episodes: int,
    seed: int = 0,
    protocol: Protocol = "fixed",
    precision: Precision = "fast",
    choose: Choose | None = None,
    progress: Progress = lambda steps, episodes: None,
) -> Score:
    """Greedy play under one attack; see `evaluate_cells`."""
    cell = Cell(attack if eps > 0 else None, eps)
    together = evaluate_cells(
        policy, [env], [cell], episodes=episodes, seed=seed, protocol=protocol, precision=precision, choose=choose,
        progress=progress,
    )  # fmt: skip
    [(_, score)] = together
    return score


def evaluate_cells(
    policy: Policy,
    envs: Sequence[VectorEnv],
    cells: Sequence[Cell],
    *,
    episodes: int,
    seed: int = 0,
    protocol: Protocol = "fixed",
    precision: Precision = "fast",
    choose: Choose | None = None,
    progress: Progress = lambda steps, episodes: None,
) -> Iterator[tuple[int, Score]]:
    """Greedy play under attack, every cell in an environment of its own, all of them at once; each score, with the number of its cell,
    when it is done.

    Cells with the same attack are rows of one batch, each with its budget and its own random draws, so that a cell has the
    score it would have alone, up to how matrix products of another size are rounded.
    `fixed`: every copy plays a number of episodes set beforehand, so that short episodes are not over-counted.
    `first`: the first `episodes` to finish on any copy count, in order of finishing, as the reference does on Procgen.
    `fast`: on a GPU attacks search in half precision, which sees steps of 1/8 gray level; actions are always decided in
    full precision. `choose` maps scores to actions instead of the argmax. `progress` is told after every step how many
    steps each copy has played, and how many episodes are done.
    """
    if episodes < 1:
        raise BclError(f"{episodes} episodes cannot be judged", "ask for at least 1")
    if protocol not in get_args(Protocol) or precision not in get_args(Precision):
        raise BclError(f"unknown protocol '{protocol}' or precision '{precision}'", "fixed or first; fast or full")
    device = next(policy.parameters()).device
    search = SearchForm.of(policy, precision)
    probe = Probe(policy, search)
    tables = [
        Table(cell, env, Generator(device).manual_seed(seed), Book(env.num_envs, episodes, protocol, device), probe)
        for cell, env in zip(cells, envs, strict=True)
    ]
    for table in tables:
        table.obs = table.env.reset(seed)
    groups = [Group(policy, search, members, choose) for members in _by_attack(tables)]
    step_count = 0
    while groups:
        for group in groups:
            group.decide()
        for group in groups:
            group.send(probing=step_count % PROBE_EVERY == 0)
        step_count += 1
        playing = [table for group in groups for table in group.playing]
        for table in playing:
            table.receive()
        progress(step_count, sum(table.book.finished for table in tables))
        for table in playing:
            if table.book.complete:
                yield tables.index(table), table.score(seed, protocol)
        groups = [group.without_finished() for group in groups if not group.finished]


def _by_attack(tables: "Sequence[Table]") -> "list[list[Table]]":
    groups: dict[object, list[Table]] = {}
    for number, table in enumerate(tables):
        attack = table.cell.attack
        # An attack of somebody else's may know one budget and one generator only.
        ours = attack is None or type(attack).__module__.startswith("bcl.attacks.")
        groups.setdefault(repr(attack) if ours else number, []).append(table)
    return [*groups.values()]


class Table:
    """A cell being played: its environment, its random draws and what counts."""

    obs: Tensor

    def __init__(self, cell: Cell, env: VectorEnv, generator: Generator, book: "Book", probe: "Probe") -> None:
        self.cell = cell
        self.env = env
        self.generator = generator
        self.book = book
        self._probe = probe
        self._probed = Probed()

    def send(self, decided: "Decided", on_host: "Decided", probing: bool) -> None:
        """Start a step with the actions of this table's copies."""
        if probing:
            refuse_over_budget(decided.distance.amax(), self.cell)
            if self.cell.attack is not None:
                self._probed += self._probe(self.obs, decided.actions, self.book.counting, self.cell)
        self.env.send(on_host.actions)
        self.book.watch(on_host.actions != on_host.clean, on_host.distance)

    def receive(self) -> None:
        """Wait for the step, and note what came of it."""
        step = self.env.recv()
        self.book.add(step)
        self.obs = step.obs

    def score(self, seed: int, protocol: Protocol) -> Score:
        """Of a table whose episodes are all done."""
        book, cell = self.book, self.cell
        refuse_over_budget(book.largest, cell)
        return Score(
            attack=NO_ATTACK if cell.attack is None else repr(cell.attack),
            eps=cell.eps,
            returns=tuple(book.returns()),
            lengths=tuple(book.lengths()),
            changed=book.changed / max(book.steps, 1),
            max_perturbation=book.largest,
            zero_gradient=self._probed.zero_gradients / max(self._probed.states, 1),
            seed=seed,
            protocol=protocol,
            precision="half" if self._probe.searches_half else "full",
            stochastic=self._probed.stochastic,
            courses=book.courses(),
        )


class Group:
    """Tables under the same attack, whose copies are rows of one batch."""

    def __init__(self, policy: Policy, search: "SearchForm", tables: "list[Table]", choose: Choose | None) -> None:
        self._policy, self._search, self._choose = policy, search, choose
        self._tables = tables
        self._device = tables[0].generator.device
        self._stream = torch.cuda.Stream() if self._device.type == "cuda" else None  # groups decide beside each other
        rows = [table.env.num_envs for table in tables]
        first = tables[0]
        eps: Budget = first.cell.eps
        generator: Randomness = first.generator
        if len(tables) > 1:
            eps = torch.tensor([table.cell.eps for table in tables], device=self._device)
            eps = eps.repeat_interleave(torch.tensor(rows, device=self._device))
            generator = RowGenerators([table.generator for table in tables], rows)
        self._rows = rows
        self._decision = Decision(policy, search, first.cell.attack, eps, generator, choose)

    @property
    def playing(self) -> "list[Table]":
        """Tables whose episodes are not all done."""
        return [table for table in self._tables if not table.book.complete]

    @property
    def finished(self) -> bool:
        """Whether no table is playing."""
        return not self.playing

    def decide(self) -> None:
        """What every copy does next; on a GPU the host goes on meanwhile."""
        if self._stream:
            self._stream.wait_stream(torch.cuda.current_stream())
        with self._beside():
            self._decided = self._decision(torch.cat([table.obs for table in self._tables]))

    def send(self, probing: bool) -> None:
        """Start the step on every table that is playing."""
        if self._stream:
            torch.cuda.current_stream().wait_stream(self._stream)
        d = self._decided
        on_host = Decided(d.actions.cpu(), d.clean.cpu(), d.seen, d.distance.cpu())  # once for all tables
        parts = zip(self._tables, d.split(self._rows), on_host.split(self._rows), strict=True)
        for table, decided, for_host in parts:
            if not table.book.complete:
                table.send(decided, for_host, probing)

    def without_finished(self) -> "Group":
        """The same with fewer rows, once that is worth making the decision anew: on a GPU a graph has to be captured."""
        playing = self.playing
        few = 2 * len(playing) <= len(self._tables) if self._stream else len(playing) < len(self._tables)
        return Group(self._policy, self._search, playing, self._choose) if few else self

    def _beside(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream) if self._stream else nullcontext()


class SearchForm(nn.Module):
    """What attacks look at: the chain whose scores differ between actions as the policy's do (a dueling value stream
    cancels in every objective of our suites, so it is not computed), in half precision and channels last where fast."""

    def __init__(self, policy: Policy, half: bool) -> None:
        super().__init__()
        self.is_half = half
        self._dtype = torch.float16 if half else next(policy.parameters()).dtype
        self._chain = policy.chain()
        if half:
            self._chain = copy.deepcopy(self._chain).half()
            nn.utils.convert_conv2d_weight_memory_format(self._chain, torch.channels_last)
        self.low, self.high = policy.low, policy.high

    @classmethod
    def of(cls, policy: Policy, precision: Precision) -> "SearchForm":
        """As an evaluation of this precision searches."""
        images = len(policy.spec.obs_shape) == 3  # in [0, 1]; half precision would be too coarse for larger numbers
        return cls(policy, half=next(policy.parameters()).is_cuda and images and precision == "fast")

    def forward(self, obs: Tensor) -> Tensor:
        return self._chain(obs.to(self._dtype)).to(obs.dtype)


class Decided(NamedTuple):
    """What N copies do next, and why. On a GPU the next call of `Decision` writes over it."""

    actions: Tensor  # (N,)
    clean: Tensor  # (N,) actions on the clean observations
    seen: Tensor  # (N, *obs_shape) what the attack showed
    distance: Tensor  # (N,) how far each observation was moved

    def split(self, rows: Sequence[int]) -> "Iterator[Decided]":
        """By tables of so many copies."""
        return (Decided(*parts) for parts in zip(*(part.split(list(rows)) for part in self), strict=True))


class Decision:
    """Observations in, actions out; on a GPU one captured graph, elsewhere the same code run eagerly."""

    def __init__(
        self,
        policy: Policy,
        searched: "SearchForm",
        attack: Attack | None,
        eps: Budget,
        generator: Randomness,
        choose: Choose | None = None,
    ) -> None:
        self._policy, self._searched, self._attack, self._eps = policy, searched, attack, eps
        self._generator = generator
        self._choose = choose or (lambda scores: scores.argmax(dim=1))
        self._graph: Graphed[Decided] | None = None

    def __call__(self, obs: Tensor) -> Decided:
        """What every copy does on these observations."""
        if obs.device.type != "cuda" or self._attack is None:
            return self._run(obs)
        if self._graph is None:
            self._input = torch.empty_like(obs)  # the fixed place from which the graph reads
            generators = [self._generator] if isinstance(self._generator, Generator) else self._generator.generators
            self._graph = Graphed(self._run_input, *generators, enabled=True)
        self._input.copy_(obs)
        return self._graph()

    def _run_input(self) -> Decided:
        return self._run(self._input)

    def _run(self, obs: Tensor) -> Decided:
        clean_obs = as_float(obs)
        with torch.no_grad(), full_precision():
            clean = self._choose(self._policy(clean_obs))
        if self._attack is None:
            return Decided(clean, clean, clean_obs, clean_obs.new_zeros(len(obs)))
        eager = obs.device.type != "cuda"
        seen = perturb(self._attack, self._searched, clean_obs, self._eps, self._generator, check=eager)
        with torch.no_grad(), full_precision():
            actions = self._choose(self._policy(seen))
        return Decided(actions, clean, seen, (seen - clean_obs).abs().flatten(1).amax(dim=1))


@dataclass(frozen=True)
class Probed:
    """What looks at single states found."""

    states: int = 0
    zero_gradients: int = 0
    stochastic: bool = False

    def __add__(self, other: "Probed") -> "Probed":
        return Probed(
            self.states + other.states, self.zero_gradients + other.zero_gradients, self.stochastic or other.stochastic
        )


class Probe:
    """Looks for vanished gradients, for chance in the policy, and for a certified action that was changed."""

    def __init__(self, policy: Policy, searched: "SearchForm") -> None:
        self._policy, self._searched = policy, searched
        # Where gradients are looked for: through the whole policy, what rounding leaves of a dueling value stream would hide
        # that nothing else has any.
        self._exact = SearchForm(policy, half=False)
        self.searches_half = searched.is_half

    def __call__(self, obs: Tensor, actions: Tensor, counting: np.ndarray, cell: Cell) -> Probed:
        """At observations of a cell's copies, of those that count."""
        rows = torch.from_numpy(counting).to(obs.device)
        obs, actions = as_float(obs)[rows], actions[rows]
        if not len(obs):
            return Probed()
        with torch.no_grad():
            scores, again = self._policy(obs), self._policy(obs)
            searched = self._searched(obs)
        if not searched.isfinite().all():
            raise BclError("the policy's scores overflow in half precision", "evaluate with precision full")
        stochastic = not torch.equal(scores, again)
        if not stochastic:  # else the action was another draw's than the scores
            _refuse_broken_certificate(self._policy, obs, scores, actions, cell)
        return Probed(len(obs), int(without_gradient(self._exact, obs).sum()), stochastic)


def without_gradient(searched: SearchForm, obs: Tensor) -> Tensor:
    """(N,) where the gradient of the cross-entropy is zero in every element: attacks that climb it cannot begin there."""
    _, _, gradient = ascent(CrossEntropy(), searched, obs, searched(obs).detach())
    return (gradient.flatten(1) == 0).all(dim=1)


def refuse_over_budget(largest: Tensor | float, cell: Cell) -> None:
    """Stop at a perturbation that no adversary with this budget could make."""
    if not float(largest) <= cell.eps + TOLERANCE:  # NaN included
        what = f"{cell.attack} moved an observation by {float(largest):.6g} at eps {cell.eps:.6g}"
        raise BclError(what, "this attack is broken")


def _refuse_broken_certificate(policy: Policy, obs: Tensor, scores: Tensor, actions: Tensor, cell: Cell) -> None:
    try:
        with torch.no_grad(), full_precision():
            lower, upper = input_box(obs, cell.eps, policy.low, policy.high)
            clean = scores.argmax(dim=1)
            method: Method = "ibp" if policy.spec.kind == "impala" else "crown-ibp"  # seconds a state on IMPALA
            proven = certified(margins(policy.chain(), lower, upper, clean, method), clean, scores)
    except BclError:  # a layer without bounds: nothing is certified, so nothing can be broken
        return
    if bool((proven & (actions != clean)).any()):
        raise BclError(
            f"{cell.attack} changed an action that was certified at eps {cell.eps:.6g}",
            "the certificate is wrong: report it",
        )


class Book:
    """Which steps and episodes of a table count; kept on the host."""

    def __init__(self, num_envs: int, episodes: int, protocol: Protocol, device: torch.device) -> None:
        self._episodes, self._protocol = episodes, protocol
        share, extra = divmod(episodes, num_envs)
        quota = np.full(num_envs, share)
        quota[:extra] += 1
        self._quota = quota if protocol == "fixed" else np.full(num_envs, episodes)
        self._finished: list[list[_Episode]] = [[] for _ in range(num_envs)]
        self._in_order: list[_Episode] = []
        self.counting = self._quota > 0
        self._length = np.zeros(num_envs, dtype=np.int64)
        self._return = np.zeros(num_envs)
        self._courses = Courses(num_envs, device)
        self._device = device
        self.changed = 0
        self.steps = 0
        self.largest = 0.0

    @property
    def finished(self) -> int:
        """Episodes that count so far."""
        return len(self._in_order)

    @property
    def complete(self) -> bool:
        """Whether every episode that counts is done."""
        return self.finished >= self._episodes

    def watch(self, changed: Tensor, distance: Tensor) -> None:
        """Note what the attack did, before the step is played; tensors of the host."""
        self._changed_now, self._distance_now = changed.numpy(), distance.numpy()

    def add(self, step: Step) -> None:
        """Note what came of the step."""
        facts = torch.stack([step.reward.double(), step.playing.double(), step.ended.double()]).cpu().numpy()
        reward, playing, ended = facts[0], facts[1] > 0, facts[2] > 0
        live = self.counting & playing
        self.steps += int(live.sum())
        self.changed += int((live & self._changed_now).sum())
        self.largest = float(np.maximum(self.largest, (self._distance_now * live).max()))  # NaN stays
        self._return += reward * live
        self._length += live
        rewarded = live & (reward != 0)
        if rewarded.any():
            rows, length = (torch.from_numpy(x).to(self._device) for x in (rewarded, self._length))
            self._courses.follow(step, rows, length)
        over = live & ended
        if over.any():
            for i in np.flatnonzero(over).tolist():
                self._finish(i, _Episode(float(self._return[i]), int(self._length[i]), int(self._courses.numbers[i])))
            self._return[over] = 0
            self._length[over] = 0
            self._courses.restart(torch.from_numpy(over).to(self._device))

    def _finish(self, copy: int, episode: "_Episode") -> None:
        if self.complete:
            return
        self._finished[copy].append(episode)
        self._in_order.append(episode)
        if len(self._finished[copy]) >= self._quota[copy]:
            self.counting[copy] = False

    def _counted(self) -> "list[_Episode]":
        if self._protocol == "first":
            return self._in_order[: self._episodes]
        return [episode for finished in self._finished for episode in finished]

    def returns(self) -> list[float]:
        """Returns that count, copy by copy, or in order of finishing."""
        return [episode.value for episode in self._counted()]

    def lengths(self) -> list[int]:
        """Their lengths in agent steps."""
        return [episode.length for episode in self._counted()]

    def courses(self) -> int:
        """How many different ones they are."""
        return different([episode.course for episode in self._counted()])


class _Episode(NamedTuple):
    value: float  # its return
    length: int
    course: int
