"""One loop that plays episodes: for scores, several cells side by side, for certificates, and for people to look at."""

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor, nn

from bcl.attacks import (
    Attack,
    Budget,
    CrossEntropy,
    LowestScored,
    Randomness,
    RowGenerators,
    perturb,
    recorded,
)
from bcl.attacks.objectives import ascent
from bcl.attacks.threat import per_sample, refuse_not_finite
from bcl.bounds import Method, certified, full_precision, input_box, margins
from bcl.device import Graphed, on_stream
from bcl.envs import Step, VariedStarts, VectorEnv
from bcl.envs.vector import seed_list
from bcl.errors import BclError
from bcl.evaluation.episodes import Book
from bcl.evaluation.plan import Cell, Plan, Precision, Protocol
from bcl.evaluation.score import Score
from bcl.policies import Policy, as_float

Progress = Callable[[int, int], None]
PROBE_EVERY = 32  # steps between looks at gradients and certificates
TOLERANCE = 1e-6  # rounding of a perturbation in float32


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
    progress: Progress = lambda steps, episodes: None,
) -> Score:
    """Greedy play under one attack; see `evaluate_cells`."""
    cell = Cell(attack if eps > 0 or isinstance(attack, LowestScored) else None, eps)
    plan = Plan(env.game, episodes, seed, protocol, precision, env.num_envs)
    [(_, score)] = evaluate_cells(policy, [env], [cell], plan, progress=progress)
    return score


def evaluate_cells(
    policy: Policy,
    envs: Sequence[VectorEnv],
    cells: Sequence[Cell],
    plan: Plan,
    certificates: Mapping[float, Method] | None = None,
    progress: Progress = lambda steps, episodes: None,
) -> Iterator[tuple[int, Score]]:
    """Greedy play under attack, all cells at once; each score, with the number of its cell, when it is done.

    Every cell has an environment of its own, or `plan.copies()` of one that they share; those that are left do not count.
    Cells with the same attack are rows of one batch, each with its budget and its own random draws, so that a cell has the
    score it would have alone, up to how matrix products of another size are rounded.
    `certificates`: budgets at which every step, and not every 32nd alone, is compared with what this method proves.
    `progress` is told after every step how many steps each copy has played, and how many episodes are done.
    """
    device = next(policy.parameters()).device
    search = SearchForm.of(policy, plan.precision)
    size = plan.copies()
    tables = [Table(cell, plan.seed, Book(size, plan.episodes, plan.protocol, device)) for cell in cells]
    per_env = envs[0].num_envs // size
    shares = [tables[first : first + per_env] for first in range(0, len(tables), per_env)]
    hosts = [Host(env, share, size, plan.seed) for env, share in zip(envs, shares, strict=False)]
    probe = Probe(policy, search, certificates or {})
    decide = functools.partial(decision_of, policy, search)
    groups = [Group(members, decide, probe) for members in _by_attack(tables)]
    left = [table for group in groups for table in group.tables]
    for steps in play(groups, hosts):
        progress(steps, sum(table.book.finished for table in tables))
        for table in left:
            if table.book.complete:
                yield tables.index(table), table.score(plan, search.is_half)
        left = [table for table in left if not table.book.complete]


@dataclass(frozen=True, eq=False)
class Moment:
    """One step of an agent under attack."""

    clean: np.ndarray
    """The observation, float, as the policy would see it without an attack."""
    seen: np.ndarray
    """What the attack showed instead."""
    wanted: int
    """The action for `clean`."""
    taken: int
    """The action for `seen`, which was played."""
    reward: float
    total: float
    """Return of the episode up to and with this step."""
    screen: np.ndarray | None
    """The game's own picture, (height, width, 3) uint8, before the action; none where the envs do not render."""


def watch(
    policy: Policy,
    envs: VectorEnv,
    attack: Attack | None,
    eps: float,
    *,
    seed: int = 0,
    steps: int | None = None,
    precision: Precision = "fast",
) -> Iterator[Moment]:
    """The episode that `evaluate` plays with this seed, step by step; `steps` ends it early. Pictures need
    `make_env(..., render=True)`."""
    if envs.num_envs != 1:
        raise BclError(f"{envs.num_envs} copies cannot be watched at once", "make one")
    if steps is not None and steps < 1:
        raise BclError(f"{steps} steps cannot be watched", "ask for at least 1")
    return _moments(policy, envs, Cell(attack if eps > 0 else None, eps), seed, steps, precision)


def _moments(
    policy: Policy, envs: VectorEnv, cell: Cell, seed: int, steps: int | None, precision: Precision
) -> Iterator[Moment]:
    device = next(policy.parameters()).device
    table = Table(cell, seed, Book(1, 1, "fixed", device))
    host = Host(envs, [table], 1, seed)
    group = Group([table], functools.partial(decision_of, policy, SearchForm.of(policy, precision)))
    obs, screen, total, shown = table.obs, envs.screen(), 0.0, 0
    for _ in play([group], [host]):
        decided, step = group.decided, table.step
        refuse_over_budget(decided.distance.amax(), cell)
        if bool(step.playing[0]):  # else it was a move of the game's own
            reward = float(step.reward[0])
            total += reward
            clean = as_float(obs)[0].cpu().numpy()
            seen = decided.seen[0].cpu().numpy()
            yield Moment(clean, seen, int(decided.clean[0]), int(decided.actions[0]), reward, total, screen)
            shown += 1
            if shown == steps:
                return
        obs, screen = step.obs, envs.screen()


def play(groups: "list[Group]", hosts: "list[Host]") -> Iterator[int]:
    """A step of every copy at a time, until all episodes that count are done; yields the number of steps so far."""
    steps = 0
    while groups:
        for group in groups:
            group.decide()
        for group in groups:
            group.act(probing=steps % PROBE_EVERY == 0)
        steps += 1
        hosts = [host for host in hosts if host.playing]
        for host in hosts:
            host.send()
        for host in hosts:
            host.receive()
        yield steps
        groups = [group.without_finished() for group in groups if group.playing]


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
    decided: "Decided"
    step: Step

    def __init__(self, cell: Cell, seed: int, book: Book) -> None:
        self.cell = cell
        self.generator = Generator(book.device).manual_seed(seed)
        self.book = book
        self.probed = 0  # states that were looked at
        self.zero_gradients = 0
        self.stochastic = False

    def score(self, plan: Plan, half: bool) -> Score:
        """Of a table whose episodes are all done."""
        book, cell = self.book, self.cell
        refuse_over_budget(book.largest, cell)
        episodes = book.episodes()
        return Score(
            attack=recorded(cell.attack),
            eps=cell.eps,
            returns=tuple(episode.value for episode in episodes),
            lengths=tuple(episode.length for episode in episodes),
            changed=book.noted / max(book.steps, 1),
            max_perturbation=book.largest,
            zero_gradient=self.zero_gradients / max(self.probed, 1),
            seed=plan.seed,
            protocol=plan.protocol,
            precision="half" if half else "full",
            stochastic=self.stochastic,
            courses=book.courses(),
            prefixes=tuple(episode.prefix for episode in episodes if episode.prefix is not None),
        )


class Host:
    """An environment, and the tables that share its copies, `size` each: on a GPU more copies cost little more."""

    def __init__(self, env: VectorEnv, tables: list[Table], size: int, seed: int) -> None:
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
        self._env.send(torch.cat([*(table.decided.actions for table in self.tables), *self._idle]))

    def receive(self) -> None:
        """Wait for the step, and note what came of it."""
        prefixes = self._env.prefixes.copy() if isinstance(self._env, VariedStarts) else None
        step = self._env.recv()
        facts = torch.stack([step.reward.double(), step.playing.double(), step.ended.double()]).cpu().numpy()
        for number, (table, part) in enumerate(zip(self.tables, step.split(self._size), strict=False)):
            table.step, table.obs = part, part.obs
            rows = slice(number * self._size, (number + 1) * self._size)
            if not table.book.complete:
                noted = table.decided.noted.numpy()
                distance = table.decided.distance.numpy()
                table.book.add(part, facts[:, rows], noted, distance, None if prefixes is None else prefixes[rows])


class Decided(NamedTuple):
    """What N copies do next, and why. On a GPU the next call of `Decision` writes over it."""

    actions: Tensor  # (N,)
    clean: Tensor  # (N,) actions on the clean observations
    seen: Tensor  # (N, *obs_shape) what the attack showed
    distance: Tensor  # (N,) how far each observation was moved
    noted: Tensor  # (N,) where the attack changed the action; of certificates, where no attack can


class Group:
    """Tables under the same attack, whose copies are rows of one batch."""

    decided: Decided

    def __init__(
        self,
        tables: list[Table],
        make_decision: Callable[[list[Table]], Callable[[Tensor], Decided]],
        probe: "Probe | None" = None,
    ) -> None:
        self.tables = tables
        self._make_decision = make_decision
        self._decision = make_decision(tables)
        self._probe = probe if tables[0].cell.perturbs else None
        cuda = tables[0].generator.device.type == "cuda"
        self._stream = torch.cuda.Stream() if cuda else None  # groups decide beside each other

    @property
    def playing(self) -> list[Table]:
        """Tables whose episodes are not all done."""
        return [table for table in self.tables if not table.book.complete]

    def decide(self) -> None:
        """What every copy does next; on a GPU the host goes on meanwhile."""
        if self._stream:
            self._stream.wait_stream(torch.cuda.current_stream())
        with on_stream(self._stream):
            self.decided = self._decision(torch.cat([table.obs for table in self.tables]))

    def act(self, probing: bool) -> None:
        """Hand every table that is playing its actions."""
        if self._stream:
            torch.cuda.current_stream().wait_stream(self._stream)
        d = self.decided
        on_host = d._replace(actions=d.actions.cpu(), distance=d.distance.cpu(), noted=d.noted.cpu())  # once for all
        parts = zip(*(part.split(len(self.tables[0].obs)) for part in on_host), strict=True)
        for table, part in zip(self.tables, parts, strict=True):
            if not table.book.complete:
                table.decided = Decided(*part)
                if not table.decided.distance.isfinite().all():
                    refuse_not_finite(as_float(table.obs))
                    hint = "the policy's scores or gradients are not finite"
                    raise BclError(f"{table.cell.attack} made NaN observations", hint)
                if probing:
                    refuse_over_budget(table.decided.distance.amax(), table.cell)
        if self._probe and probing:
            self._probe(self.playing)
        elif self._probe:
            self._probe.certificates_hold(self.playing)

    def without_finished(self) -> "Group":
        """The same with fewer rows, once that is worth making the decision anew: on a GPU a graph has to be captured."""
        playing = self.playing
        few = 2 * len(playing) <= len(self.tables) if self._stream else len(playing) < len(self.tables)
        return Group(playing, self._make_decision, self._probe) if few else self


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


def decision_of(policy: Policy, search: SearchForm, tables: Sequence[Table]) -> "Decision":
    """For tables under one attack: each row has its table's budget and random draws."""
    first, copies = tables[0], len(tables[0].obs)
    if len(tables) == 1:
        return Decision(policy, search, first.cell.attack, first.cell.eps, first.generator)
    budgets = torch.tensor([table.cell.eps for table in tables], device=first.generator.device)
    generators = RowGenerators([table.generator for table in tables], [copies] * len(tables))
    return Decision(policy, search, first.cell.attack, budgets.repeat_interleave(copies), generators)


class Decision:
    """Observations in, actions out; on a GPU one captured graph, elsewhere the same code run eagerly."""

    def __init__(
        self, policy: Policy, searched: SearchForm, attack: Attack | None, eps: Budget, generator: Randomness
    ) -> None:
        self._policy, self._searched, self._eps = policy, searched, eps
        self._generator = generator
        self._choose = torch.argmin if isinstance(attack, LowestScored) else torch.argmax
        self._attack = None if isinstance(attack, LowestScored) else attack
        self._graph: Graphed[Decided] | None = None

    def __call__(self, obs: Tensor) -> Decided:
        """What every copy does on these observations."""
        if obs.device.type != "cuda" or self._attack is None:
            self._input = obs
            return self._run()
        if self._graph is None:
            self._input = torch.empty_like(obs)  # the fixed place from which the graph reads
            generators = [self._generator] if isinstance(self._generator, Generator) else self._generator.generators
            self._graph = Graphed(self._run, *generators, enabled=True)
        self._input.copy_(obs)
        return self._graph()

    def _run(self) -> Decided:
        clean_obs = as_float(self._input)
        clean = self._actions(clean_obs)
        if self._attack is None:
            return Decided(clean, clean, clean_obs, _moved(clean_obs, clean_obs), torch.zeros_like(clean) > 0)
        eager = clean_obs.device.type != "cuda"
        seen = perturb(self._attack, self._searched, clean_obs, self._eps, self._generator, check=eager)
        actions = self._actions(seen)
        return Decided(actions, clean, seen, _moved(seen, clean_obs), actions != clean)

    def _actions(self, obs: Tensor) -> Tensor:
        with torch.no_grad(), full_precision():
            return self._choose(self._policy(obs), dim=1)


def _moved(seen: Tensor, obs: Tensor) -> Tensor:
    """(N,) how far each observation was moved; NaN where an element of either is not finite."""
    return (seen - obs).abs().flatten(1).amax(dim=1)


class Probe:
    """Looks for vanished gradients, for chance in the policy, and for a certified action that was changed."""

    def __init__(self, policy: Policy, searched: SearchForm, certificates: Mapping[float, Method]) -> None:
        self._policy = policy
        self._searched = searched
        self._certificates = certificates
        # Where gradients are looked for: through the whole policy, what rounding leaves of a dueling value stream would hide
        # that nothing else has any.
        self._exact = SearchForm(policy, half=False)

    def __call__(self, tables: Sequence[Table]) -> None:
        """At what the copies see whose steps count; each table is told of its own."""
        counts = [int(table.book.counting.sum()) for table in tables]
        if not sum(counts):
            return
        counting = [torch.from_numpy(table.book.counting) for table in tables]
        obs = torch.cat([as_float(table.obs)[own] for table, own in zip(tables, counting, strict=True)])
        actions = torch.cat([table.decided.actions[own] for table, own in zip(tables, counting, strict=True)])
        actions = actions.to(obs.device)
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
            table.probed += count
            table.zero_gradients += int(without.sum())
            table.stochastic |= stochastic

    def certificates_hold(self, tables: Sequence[Table]) -> None:
        """Only whether a certified action was changed, where certificates are at hand, by their method."""
        for table in tables:
            method = self._certificates.get(table.cell.eps)
            if method is None or table.stochastic:
                continue
            rows = torch.from_numpy(table.book.counting)
            obs = as_float(table.obs)[rows.to(table.obs.device)]
            with torch.no_grad():
                scores = self._policy(obs)
            actions = table.decided.actions[rows].to(obs.device)
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
