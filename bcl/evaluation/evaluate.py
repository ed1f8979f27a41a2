"""Cells of an evaluation: episodes on all copies of a game at once while attacks change what is seen, several cells side by
side."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Generator, Tensor, nn

from bcl.attacks import Attack, Budget, CrossEntropy, Randomness, RowGenerators, perturb
from bcl.attacks.names import attack_label
from bcl.attacks.objectives import ascent
from bcl.attacks.threat import per_sample
from bcl.bounds import Method, certified, full_precision, input_box, margins
from bcl.device import Graphed
from bcl.envs import Step, VariedStarts, VectorEnv
from bcl.envs.vector import seed_list
from bcl.errors import BclError
from bcl.evaluation.courses import Courses, different
from bcl.evaluation.score import NO_ATTACK, Score
from bcl.policies import Policy, as_float
from bcl.settings import format_eps

Protocol = Literal["fixed", "first"]
Precision = Literal["fast", "full"]
Progress = Callable[[int, int], None]
Choose = Callable[[Tensor], Tensor]
PROBE_EVERY = 32  # steps between looks at gradients and certificates
NO_CERTIFICATES: Mapping[float, Method] = {}
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
    copies: int = 0,
    certificates: Mapping[float, Method] = NO_CERTIFICATES,
    progress: Progress = lambda steps, episodes: None,
) -> Iterator[tuple[int, Score]]:
    """Greedy play under attack, all cells at once; each score, with the number of its cell, when it is done.

    Every cell has an environment of its own, or `copies` of one that they share; copies that are left play for nothing, and
    environments that are left are not touched.
    Cells with the same attack are rows of one batch, each with its budget and its own random draws, so that a cell has the
    score it would have alone, up to how matrix products of another size are rounded.
    `fixed`: every copy plays a number of episodes set beforehand, so that short episodes are not over-counted.
    `first`: the first `episodes` to finish on any copy count, in order of finishing, as the reference does on Procgen.
    `fast`: on a GPU attacks search in half precision, which sees steps of 1/8 gray level; actions are always decided in
    full precision. `choose` maps scores to actions instead of the argmax. `certificates`: budgets at which every step, and not
    every 32nd alone, is held against what this method proves. `progress` is told after every step how many steps each copy has
    played, and how many episodes are done.
    """
    if episodes < 1:
        raise BclError(f"{episodes} episodes cannot be judged", "ask for at least 1")
    if protocol not in get_args(Protocol) or precision not in get_args(Precision):
        raise BclError(f"unknown protocol '{protocol}' or precision '{precision}'", "fixed or first; fast or full")
    device = next(policy.parameters()).device
    search = SearchForm.of(policy, precision)
    size = copies or envs[0].num_envs
    tables = [
        Table(cell, Generator(device).manual_seed(seed), Book(size, episodes, protocol, device)) for cell in cells
    ]
    hosts = list[Host]()
    for env in envs:
        taken = sum(len(host.tables) for host in hosts)
        if taken == len(tables):
            break
        hosts.append(Host(env, tables[taken : taken + env.num_envs // size], size, seed))
    probe = Probe(policy, search, certificates)
    groups = [Group(policy, search, members, choose, probe) for members in _by_attack(tables)]
    step_count = 0
    while groups:
        for group in groups:
            group.decide()
        for group in groups:
            group.wait(probing=step_count % PROBE_EVERY == 0)
        step_count += 1
        playing = [table for group in groups for table in group.playing]
        hosts = [host for host in hosts if host.playing]
        for host in hosts:
            host.send()
        for host in hosts:
            host.receive()
        progress(step_count, sum(table.book.finished for table in tables))
        for table in playing:
            if table.book.complete:
                yield tables.index(table), table.score(seed, protocol, search.is_half)
        groups = [group.without_finished() for group in groups if not group.finished]


def _by_attack(tables: "Sequence[Table]") -> "list[list[Table]]":
    groups: dict[object, list[Table]] = {}
    for number, table in enumerate(tables):
        attack = table.cell.attack
        # An attack of somebody else's may know one budget and one generator only.
        ours = attack is None or type(attack).__module__.startswith("bcl.attacks.")
        groups.setdefault(attack if ours else number, []).append(table)
    return [*groups.values()]


class Table:
    """A cell being played: its random draws, what its copies see and do, and what counts."""

    obs: Tensor
    actions: Tensor

    def __init__(self, cell: Cell, generator: Generator, book: "Book") -> None:
        self.cell = cell
        self.generator = generator
        self.book = book
        self.probed = Probed()

    def act(self, decided: "Decided") -> None:
        """What the copies do next; tensors of the host."""
        if not decided.distance.isfinite().all():
            _refuse_not_finite(self.obs, self.cell)
        self.actions = decided.actions
        self.book.watch(decided.actions != decided.clean, decided.distance)

    def score(self, seed: int, protocol: Protocol, half: bool) -> Score:
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
            zero_gradient=self.probed.zero_gradients / max(self.probed.states, 1),
            seed=seed,
            protocol=protocol,
            precision="half" if half else "full",
            stochastic=self.probed.stochastic,
            courses=book.courses(),
            prefixes=tuple(book.prefixes()),
        )


class Host:
    """An environment, and the tables that play on its copies, `size` each. On a GPU what a step costs between the device and the
    host hardly depends on the number of copies."""

    def __init__(self, env: VectorEnv, tables: "list[Table]", size: int, seed: int) -> None:
        self._env, self.tables, self._size = env, tables, size
        seats = env.num_envs // size
        obs = env.reset(seed_list(seed, size) * seats if seats > 1 else seed)
        for table, part in zip(tables, obs.split(size), strict=False):
            table.obs = part
        self._idle = [torch.zeros(size, dtype=torch.long)] * (seats - len(tables))

    @property
    def playing(self) -> bool:
        """Whether a table has episodes left."""
        return not all(table.book.complete for table in self.tables)

    def send(self) -> None:
        """Start a step of every copy; tables that are done repeat their last actions."""
        self._env.send(torch.cat([*(table.actions for table in self.tables), *self._idle]))

    def receive(self) -> None:
        """Wait for the step, and note what came of it."""
        prefixes = self._env.prefixes.copy() if isinstance(self._env, VariedStarts) else None
        step = self._env.recv()
        facts = torch.stack([step.reward.double(), step.playing.double(), step.ended.double()]).cpu().numpy()
        for number, (table, part) in enumerate(zip(self.tables, step.split(self._size), strict=False)):
            table.obs = part.obs
            rows = slice(number * self._size, (number + 1) * self._size)
            if not table.book.complete:
                table.book.add(part, facts[:, rows], None if prefixes is None else prefixes[rows])


class Group:
    """Tables under the same attack, whose copies are rows of one batch."""

    def __init__(
        self, policy: Policy, search: "SearchForm", tables: "list[Table]", choose: Choose | None, probe: "Probe"
    ) -> None:
        self._policy, self._search, self._choose, self._probe = policy, search, choose, probe
        self._tables = tables
        self._device = tables[0].generator.device
        self._stream = torch.cuda.Stream() if self._device.type == "cuda" else None  # groups decide beside each other
        rows = [len(table.obs) for table in tables]
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

    def wait(self, probing: bool) -> None:
        """Hand every table that is playing its actions."""
        if self._stream:
            torch.cuda.current_stream().wait_stream(self._stream)
        d = self._decided
        on_host = Decided(d.actions.cpu(), d.clean.cpu(), d.seen, d.distance.cpu())  # once for all tables
        for table, decided in zip(self._tables, on_host.split(self._rows), strict=True):
            if not table.book.complete:
                table.act(decided)
                if probing:
                    refuse_over_budget(decided.distance.amax(), table.cell)
        if self._tables[0].cell.attack is None:
            return
        if probing:
            self._probe(self.playing)
        else:
            self._probe.certificates_hold(self.playing)

    def without_finished(self) -> "Group":
        """The same with fewer rows, once that is worth making the decision anew: on a GPU a graph has to be captured."""
        playing = self.playing
        few = 2 * len(playing) <= len(self._tables) if self._stream else len(playing) < len(self._tables)
        return Group(self._policy, self._search, playing, self._choose, self._probe) if few else self

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
            return Decided(clean, clean, clean_obs, _moved(clean_obs, clean_obs))
        eager = obs.device.type != "cuda"
        seen = perturb(self._attack, self._searched, clean_obs, self._eps, self._generator, check=eager)
        with torch.no_grad(), full_precision():
            actions = self._choose(self._policy(seen))
        return Decided(actions, clean, seen, _moved(seen, clean_obs))


def _moved(seen: Tensor, obs: Tensor) -> Tensor:
    """(N,) how far each observation was moved; NaN where an element of either is not finite."""
    return (seen - obs).abs().flatten(1).amax(dim=1)


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

    def __init__(self, policy: Policy, searched: "SearchForm", certificates: Mapping[float, Method]) -> None:
        self._policy, self._searched, self._certificates = policy, searched, certificates
        # Where gradients are looked for: through the whole policy, what rounding leaves of a dueling value stream would hide
        # that nothing else has any.
        self._exact = SearchForm(policy, half=False)

    def __call__(self, tables: Sequence[Table]) -> None:
        """At what the copies see whose steps count; each table is told of its own."""
        counts = [int(table.book.counting.sum()) for table in tables]
        if not sum(counts):
            return
        obs = torch.cat([as_float(table.obs)[torch.from_numpy(table.book.counting)] for table in tables])
        actions = torch.cat([table.actions[torch.from_numpy(table.book.counting)] for table in tables]).to(obs.device)
        with torch.no_grad():
            scores, again = self._policy(obs), self._policy(obs)
            searched = self._searched(obs)
        if not scores.isfinite().all():
            raise BclError("the policy's scores are not finite", "its training broke, or its weights were damaged")
        if not searched.isfinite().all():
            raise BclError("the policy's scores overflow in half precision", "evaluate with precision full")
        stochastic = not torch.equal(scores, again)
        if not stochastic:  # else the action was another draw's than the scores
            # Others take seconds a state on IMPALA.
            method: Method = "ibp" if self._policy.spec.kind == "impala" else "crown-ibp"
            cells = [table.cell for table, count in zip(tables, counts, strict=True) for _ in range(count)]
            _refuse_broken_certificate(self._policy, obs, scores, actions, cells, method)
        blind = without_gradient(self._exact, obs).split(counts)
        for table, count, without in zip(tables, counts, blind, strict=True):
            table.probed += Probed(count, int(without.sum()), stochastic)

    def certificates_hold(self, tables: Sequence[Table]) -> None:
        """Only whether a certified action was changed, where certificates are at hand, by their method."""
        for table in tables:
            method = self._certificates.get(table.cell.eps)
            if method is None or table.probed.stochastic:
                continue
            rows = torch.from_numpy(table.book.counting)
            obs = as_float(table.obs)[rows.to(table.obs.device)]
            with torch.no_grad():
                scores = self._policy(obs)
            actions = table.actions[rows].to(obs.device)
            _refuse_broken_certificate(self._policy, obs, scores, actions, [table.cell] * len(obs), method)


def without_gradient(searched: SearchForm, obs: Tensor) -> Tensor:
    """(N,) where the gradient of the cross-entropy is zero in every element: attacks that climb it cannot begin there."""
    _, _, gradient = ascent(CrossEntropy(), searched, obs, searched(obs).detach())
    return (gradient.flatten(1) == 0).all(dim=1)


def refuse_over_budget(largest: Tensor | float, cell: Cell) -> None:
    """Stop at a perturbation that no adversary with this budget could make."""
    if not float(largest) <= cell.eps + TOLERANCE:  # NaN included
        what = f"{cell.attack} moved an observation by {float(largest):.6g} at eps {cell.eps:.6g}"
        raise BclError(what, "this attack is broken")


def _refuse_not_finite(obs: Tensor, cell: Cell) -> None:
    finite = as_float(obs).isfinite().flatten(1).all(dim=1)
    if not finite.all():
        what = f"observation {int((~finite).nonzero()[0])} of {len(obs)} has NaN or infinite elements"
        raise BclError(what, "look at the environment")
    raise BclError(f"{cell.attack} made NaN observations", "the policy's scores or gradients are not finite")


def _refuse_broken_certificate(
    policy: Policy, obs: Tensor, scores: Tensor, actions: Tensor, cells: Sequence[Cell], method: Method
) -> None:
    """`cells`: of each observation."""
    eps = per_sample(torch.tensor([cell.eps for cell in cells], dtype=obs.dtype, device=obs.device), obs)
    try:
        with torch.no_grad(), full_precision():
            lower, upper = input_box(obs, eps, policy.low, policy.high)
            clean = scores.argmax(dim=1)
            proven = certified(margins(policy.chain(), lower, upper, clean, method), clean, scores)
    except BclError:  # a layer without bounds: nothing is certified, so nothing can be broken
        return
    broken = (proven & (actions != clean)).tolist()
    if any(broken):
        cell = cells[broken.index(True)]
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
        self._known: set[int] = set()  # courses
        self._repeats = 0
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

    def add(self, step: Step, facts: np.ndarray, prefixes: np.ndarray | None = None) -> None:
        """Note what came of the step; `facts` (3, N): rewards, who played, whose episode ended, on the host; `prefixes`: random
        actions with which each copy's episode began."""
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
                course = int(self._courses.numbers[i])
                prefix = None if prefixes is None else int(prefixes[i])
                self._finish(i, _Episode(float(self._return[i]), int(self._length[i]), course, prefix))
            self._return[over] = 0
            self._length[over] = 0
            self._courses.restart(torch.from_numpy(over).to(self._device))

    def _finish(self, copy: int, episode: "_Episode") -> None:
        if self.complete:
            return
        if episode.prefix is not None and episode.course in self._known and self._repeats < self._episodes:
            self._repeats += 1  # the same course again: this copy plays on, from another start
            return
        self._known |= {episode.course} - {0}  # 0: no reward, nothing to tell it by
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

    def prefixes(self) -> list[int]:
        """Random actions before each; empty where episodes begin as the game has them begin."""
        return [episode.prefix for episode in self._counted() if episode.prefix is not None]

    def courses(self) -> int:
        """How many different ones they are."""
        return different([episode.course for episode in self._counted()])


class _Episode(NamedTuple):
    value: float  # its return
    length: int
    course: int
    prefix: int | None
