"""One loop that plays episodes: for scores, for certificates, and to look at."""

import copy
import functools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor, nn

from bcl import small_convs
from bcl.attacks import (
    FGSM,
    PGD,
    Attack,
    Budget,
    CrossEntropy,
    LowestScored,
    Multi,
    MultiT,
    Randomness,
    WorstAction,
    perturb,
)
from bcl.attacks.alike import first_alike
from bcl.attacks.objectives import ascent
from bcl.attacks.pgd import Together
from bcl.attacks.ri_fgsm import StartsTogether
from bcl.attacks.threat import AttackedPolicy, per_sample, refuse_not_finite
from bcl.bounds import Method, full_precision
from bcl.device import Graphed, on_stream
from bcl.envs import VariedStarts, VectorEnv
from bcl.envs.vector import seed_list
from bcl.errors import BclError
from bcl.evaluation.evaluation import Score
from bcl.evaluation.outlook import UnderWay
from bcl.evaluation.plan import Cell, Plan, Precision, Protocol, network_passes
from bcl.evaluation.proofs import COMPARE_EVERY, GraphedProof, OfOpenRows, OpenRows, proven, quick_method
from bcl.evaluation.slot import Decided, Slot
from bcl.frozen import FrozenConvPool, FrozenResidual, frozen
from bcl.games import ProcgenGame
from bcl.policies import Policy, as_float
from bcl.policies.policy import CUSTOM

Progress = Callable[[int, int], None]
Follow = Callable[[Callable[[], list[UnderWay]]], None]
"""Given a function that tells, whenever it is called, what is known of the scores being played."""


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
) -> Score:
    """Greedy play under one attack; see `evaluate_cells`."""
    cell = Cell(attack if eps > 0 or isinstance(attack, LowestScored) else None, eps)
    plan = Plan(env.game, episodes, seed, protocol, precision, env.num_envs)
    [(_, score)] = evaluate_cells(policy, [env], [cell], plan)
    return score


def evaluate_cells(
    policy: Policy,
    envs: Sequence[VectorEnv],
    cells: Sequence[Cell],
    plan: Plan,
    certificates: Mapping[float, Method] | None = None,
    progress: Progress = lambda steps, episodes: None,
    follow: Follow = lambda under_way: None,
) -> Iterator[tuple[int, Score]]:
    """Greedy play under attack, all cells at once; each score, with the number of its cell, when it is done.

    Every cell has an environment of its own, which may be of another game than the plan's, or `plan.copies()` of one
    that they share. Cells with the same attack are rows of one batch, each with its budget and its own random draws: it
    has the score it would have alone, up to rounding. `certificates`: budgets at which every step, and not every 32nd
    alone, is compared with this method. `progress` is told the steps of each copy, and the episodes done. `follow` is
    given a function by which it can look, at any later time, at what is known of the scores that are not done.
    """
    search = SearchForm(policy, plan.precision)
    slots = [Slot(cell, plan, policy.device) for cell in cells]
    follow(lambda: [slot.under_way() for slot in slots if not slot.complete])
    per_env = envs[0].num_envs // plan.copies()
    shares = [slots[first : first + per_env] for first in range(0, len(slots), per_env)]
    shared_envs = [SharedEnv(env, share) for env, share in zip(envs, shares, strict=False)]
    probe = Probe(policy, search, certificates or {})
    decide = functools.partial(chooser_for, policy, search, certified=certificates or ())
    by_attack: dict[object, list[Slot]] = {}
    for number, slot in enumerate(slots):
        attack = slot.cell.attack
        by_attack.setdefault(attack if _takes_rows(attack) else number, []).append(slot)
    together: dict[object, list[Slot]] = {}
    for key, members in by_attack.items():
        together.setdefault(_batch_of(key), []).extend(members)
    groups = [Group(members, decide, probe) for members in together.values()]
    groups.sort(key=lambda group: _waits(group.slots[0].cell.attack))  # others go on meanwhile
    left = [slot for group in groups for slot in group.slots]
    for steps in play(groups, shared_envs):
        progress(steps, sum(slot.finished for slot in slots))
        for slot in left:
            if slot.complete:
                yield slots.index(slot), slot.score(search.is_half)
        left = [slot for slot in left if not slot.complete]


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
    policy: Policy, envs: VectorEnv, attack: Attack | None, eps: float, *, seed: int = 0, steps: int | None = None
) -> Iterator[Moment]:
    """The episode that `evaluate` plays with this seed, step by step, at most `steps`; pictures need `render=True`."""
    if envs.num_envs != 1:
        raise BclError(f"{envs.num_envs} copies cannot be watched at once", "make one")
    if steps is not None and steps < 1:
        raise BclError(f"{steps} steps cannot be watched", "ask for at least 1")
    plan = Plan(envs.game, 1, seed, num_envs=1)
    slot = Slot(Cell(attack if eps > 0 else None, eps), plan, policy.device)
    shared_env = SharedEnv(envs, [slot])
    group = Group([slot], functools.partial(chooser_for, policy, SearchForm(policy, "fast")))
    obs = slot.obs
    screen = envs.screen()
    total = 0.0
    shown = 0
    for _ in play([group], [shared_env]):
        decided = group.decided
        step = slot.step
        if bool(step.playing[0]):  # else it was a move of the game's own
            reward = float(step.reward[0])
            total += reward
            clean = as_float(obs)[0].cpu().numpy()
            seen = decided.seen[0].cpu().numpy()
            yield Moment(clean, seen, int(decided.clean[0]), int(decided.actions[0]), reward, total, screen)
            shown += 1
            if shown == steps:
                return
        obs = step.obs
        screen = envs.screen()


def play(groups: "list[Group]", shared_envs: "list[SharedEnv]") -> Iterator[int]:
    """A step of every copy at a time, until all is played; yields the steps so far.

    Where there are several environments, one steps while the GPU decides for another.
    """
    steps = 0
    order: Order | None = None
    while groups:
        shared_envs = [shared_env for shared_env in shared_envs if shared_env.playing]
        if order is None or (order.groups, order.shared_envs) != (groups, shared_envs):
            order = Order.of(groups, shared_envs)
        for group in groups:
            group.decide()
        for group in groups:
            group.act()
            for shared_env in order.sent_after[group]:
                shared_env.send()
        steps += 1
        for shared_env in shared_envs:
            shared_env.receive()
            for group in order.decided_after[shared_env]:
                if group.goes_on_alike:
                    group.decide()
        yield steps
        groups = [group.without_finished() for group in groups if group.playing]


@dataclass(frozen=True)
class Order:
    """Who waits for whom."""

    groups: "list[Group]"
    shared_envs: "list[SharedEnv]"
    sent_after: "dict[Group, list[SharedEnv]]"
    """Environments that have all their actions once a group has acted."""
    decided_after: "dict[SharedEnv, list[Group]]"
    """Groups that have all their observations once an environment was received, while later ones may still step."""

    @staticmethod
    def of(groups: "list[Group]", shared_envs: "list[SharedEnv]") -> "Order":
        sent_after: dict[Group, list[SharedEnv]] = {group: [] for group in groups}
        decided_after: dict[SharedEnv, list[Group]] = {shared_env: [] for shared_env in shared_envs}
        for shared_env in shared_envs:
            *_, last = (group for group in groups if group.plays_in(shared_env))
            sent_after[last].append(shared_env)
        for group in groups:
            *_, latest = (shared_env for shared_env in shared_envs if group.plays_in(shared_env))
            if latest is not shared_envs[-1]:
                decided_after[latest].append(group)
        return Order(groups, shared_envs, sent_after, decided_after)


def _takes_rows(attack: Attack | None) -> bool:
    """A user-defined attack may know one budget and one generator only."""
    return attack is None or type(attack).__module__.startswith("bcl.attacks.")


def _batch_of(attack: object) -> object:
    """What attacks have in common whose rows can be one batch."""
    if isinstance(attack, PGD | WorstAction):
        return "climb", attack.steps
    return same_candidates(attack)


def same_candidates(attack: object) -> object:
    """Alike for Multi and Multi-T with as many starts, which choose among the same images; else the attack itself."""
    return ("starts", attack.starts) if isinstance(attack, Multi | MultiT) else attack


def _waits(attack: Attack | None) -> bool:
    """Whether an attack looks at what the device found, so that it cannot be a graph."""
    return getattr(attack, "leaves_settled", False)


class SharedEnv:
    """An environment, and the slots that share its copies: on a GPU more copies cost little more."""

    def __init__(self, env: VectorEnv, slots: list[Slot]) -> None:
        plan = slots[0].plan
        self._env = env
        self.slots = slots
        self._size = plan.copies()
        slot_count = env.num_envs // self._size
        obs = env.reset(seed_list(plan.seed, self._size) * slot_count if slot_count > 1 else plan.seed)
        for slot, part in zip(slots, obs.split(self._size), strict=False):
            slot.obs = part
        self._idle = [torch.zeros(self._size, dtype=torch.long)] * (slot_count - len(slots))

    @property
    def playing(self) -> bool:
        """Whether a slot has episodes left."""
        return not all(slot.complete for slot in self.slots)

    def send(self) -> None:
        """Start a step of every copy; slots that are done repeat their last actions."""
        self._env.send(torch.cat([*(slot.decided.actions for slot in self.slots), *self._idle]))

    def receive(self) -> None:
        """Wait for the step, and count it."""
        prefixes = self._env.prefixes.copy() if isinstance(self._env, VariedStarts) else None
        step = self._env.recv()
        facts = torch.stack([step.reward.double(), step.playing.double(), step.ended.double()]).cpu().numpy()
        for number, (slot, part) in enumerate(zip(self.slots, step.split(self._size), strict=False)):
            rows = slice(number * self._size, (number + 1) * self._size)
            slot.receive(part, facts[:, rows], None if prefixes is None else prefixes[rows])


class Group:
    """Slots under the same attack, or under attacks that go together, whose copies are rows of one batch."""

    decided: Decided

    def __init__(
        self,
        slots: list[Slot],
        make_chooser: Callable[[list[Slot]], Callable[[Tensor], Decided]],
        probe: "Probe | None" = None,
    ) -> None:
        self.slots = slots
        self._decides = False
        self._steps = 0
        self._make_chooser = make_chooser
        self._choose_actions = make_chooser(slots)
        self._probe = probe if slots[0].cell.perturbs else None
        cuda = slots[0].generator.device.type == "cuda"
        self._stream = torch.cuda.Stream() if cuda else None  # groups decide beside each other

    @property
    def playing(self) -> list[Slot]:
        """Slots whose episodes are not all done."""
        return [slot for slot in self.slots if not slot.complete]

    def plays_in(self, shared_env: SharedEnv) -> bool:
        """Whether some of its copies do."""
        return not set(self.slots).isdisjoint(shared_env.slots)

    @property
    def goes_on_alike(self) -> bool:
        """Whether the next step is of the same rows, and the host need not wait for its decision."""
        return bool(self.playing) and not self._shrinks and not _waits(self.slots[0].cell.attack)

    def decide(self) -> None:
        """What every copy does next, unless it was begun before; on a GPU the host goes on meanwhile."""
        if self._decides:
            return
        self._decides = True
        if self._stream:
            self._stream.wait_stream(torch.cuda.current_stream())
        with on_stream(self._stream):
            self.decided = self._choose_actions(torch.cat([slot.obs for slot in self.slots]))

    def act(self) -> None:
        """Hand every slot that is playing its actions."""
        self._decides = False
        probing = self._steps % COMPARE_EVERY == 0  # as its `OpenRows` counts
        self._steps += 1
        if self._stream:
            torch.cuda.current_stream().wait_stream(self._stream)
        d = self.decided
        on_host = d._replace(actions=d.actions.cpu(), distance=d.distance.cpu(), noted=d.noted.cpu())  # once for all
        parts = zip(*(part.split(len(self.slots[0].obs)) for part in on_host), strict=True)
        for slot, part in zip(self.slots, parts, strict=True):
            if not slot.complete:
                slot.decided = Decided(*part)
                if not slot.decided.distance.isfinite().all():
                    refuse_not_finite(as_float(slot.obs))
                    hint = "the policy's action scores or gradients are not finite"
                    raise BclError(f"{slot.cell.attack} made NaN observations", hint)
        if self._probe and probing:
            self._probe(self.playing)
        if self._probe:
            self._probe.certificates_hold(self.playing)

    @property
    def _shrinks(self) -> bool:
        """Whether so many slots are done that it is worth deciding anew: on a GPU a graph has to be captured."""
        left = len(self.playing)
        return 2 * left <= len(self.slots) if self._stream else left < len(self.slots)

    def without_finished(self) -> "Group":
        """The same with fewer rows, once that is worth it."""
        return Group(self.playing, self._make_chooser, self._probe) if self._shrinks else self


class SearchForm(nn.Module):
    """What attacks look at: the chain, without a dueling value stream. Images go through its frozen form, on a GPU in
    half precision if fast."""

    def __init__(self, policy: Policy, precision: Precision) -> None:
        super().__init__()
        images = len(policy.spec.obs_shape) == 3  # in [0, 1]; half precision would be too coarse for larger numbers
        ours = policy.spec.kind != CUSTOM
        self.is_half = images and policy.device.type == "cuda" and precision == "fast"
        self.computes_in = (
            torch.float16 if self.is_half else next((p.dtype for p in policy.parameters()), policy.low.dtype)
        )
        self._chain = policy.chain()
        if self.is_half or (images and ours):
            self._chain = frozen(self._chain, self.computes_in)
            nn.utils.convert_conv2d_weight_memory_format(self._chain, torch.channels_last)
        self.low = policy.low
        self.high = policy.high
        self._make_proof = functools.partial(GraphedProof, policy)  # an attribute would make it a part of this module
        self._proofs: dict[int, GraphedProof] | None = {}  # by how many observations; none: a layer has no bounds
        own_kernels = any(isinstance(layer, FrozenConvPool | FrozenResidual) for layer in self._chain)
        self._at_once = small_convs.most_rows(*policy.spec.obs_shape[1:]) if own_kernels else sys.maxsize

    def forward(self, obs: Tensor) -> Tensor:
        if len(obs) > self._at_once:
            return torch.cat([self(part) for part in obs.split(self._at_once)])
        chain = self._chain
        scores = chain(obs if getattr(chain[0], "converts", False) else obs.to(self.computes_in))
        return scores.to(torch.promote_types(obs.dtype, torch.float32))

    def proves(self, obs: Tensor, eps: Budget) -> Tensor:
        """(N,) where no observation within the budget changes the action; nowhere, if a layer has no bounds."""
        if self._proofs is not None:
            if len(obs) not in self._proofs:
                self._proofs[len(obs)] = self._make_proof(obs)
            try:
                return self._proofs[len(obs)](obs, eps)
            except BclError:
                self._proofs = None
        return torch.zeros(len(obs), dtype=torch.bool, device=obs.device)


def chooser_for(
    policy: Policy, search: SearchForm, slots: Sequence[Slot], certified: Collection[float] = ()
) -> "ActionChooser":
    """For slots under one attack, or under some of one batch: each row has its slot's budget and random draws.
    `certified`: budgets at which no action is left alone for a proof: all are held against certificates."""
    first = slots[0]
    attack = first.cell.attack
    if any(slot.cell.attack != attack for slot in slots):
        attack = _together([slot.cell.attack for slot in slots])
    # Procgen's engine draws for all copies: what one does may count for the others.
    counting = None if isinstance(first.plan.game, ProcgenGame) else functools.partial(_counting, slots)
    open_rows = None
    if not _waits(attack):  # else it looks itself for what is proven
        if _has_open_rows(policy, attack, first.obs):
            held = any(slot.cell.eps in certified for slot in slots)
            open_rows = OpenRows(policy, 0 if held else network_passes(attack), counting)
        counting = None  # a graph has all rows
    if len(slots) == 1 and not counting:
        return ActionChooser(policy, search, attack, first.cell.eps, first.generator, open_rows=open_rows)
    budgets = torch.tensor([slot.cell.eps for slot in slots], device=first.generator.device)
    rows = budgets.repeat_interleave(len(first.obs))
    generators = [slot.generator for slot in slots]
    return ActionChooser(policy, search, attack, rows, generators, counting, open_rows)


def _has_open_rows(policy: Policy, attack: Attack | None, obs: Tensor) -> bool:
    """Whether it is worth asking which rows are: several images on a CPU, seen by a network of ours, under an attack
    whose copies of a batch follow each other. A single one is looked at by people, who want to see what is shown."""
    images = attack is not None and obs.device.type == "cpu" and obs.dim() == 4 and len(obs) > 1
    return images and policy.spec.kind != CUSTOM and _takes_rows(attack) and not isinstance(attack, Together)


def _draws_nothing(attack: Attack) -> bool:
    """Whether it finds the same for observations that are the same."""
    return isinstance(attack, FGSM) or (isinstance(attack, PGD) and not attack.random_start)


def _counting(slots: Sequence[Slot]) -> Tensor:
    return torch.cat([torch.from_numpy(slot.counting) for slot in slots])


def _together(attacks: Sequence[Attack | None]) -> Attack:
    climbs = tuple(attack for attack in attacks if isinstance(attack, PGD | WorstAction))
    scans = tuple(attack for attack in attacks if isinstance(attack, Multi | MultiT))
    return Together(climbs) if climbs else StartsTogether(scans)


class ActionChooser:
    """Observations in, actions out: on a GPU a captured graph, elsewhere and for attacks that wait run eagerly."""

    def __init__(
        self,
        policy: Policy,
        searched: SearchForm,
        attack: Attack | None,
        eps: Budget,
        generator: Randomness,
        counting: Callable[[], Tensor] | None = None,
        open_rows: OpenRows | None = None,
    ) -> None:
        """`counting`: (N,) which copies have episodes left; the others are not attacked. It needs a budget per row.
        `open_rows`: observations that the attack need not look at are left out of its passes through the network."""
        self._policy = _for_decisions(policy)
        self._searched = searched
        self._budgets = eps
        self._eps = eps
        self._counting = counting
        self._open_rows = open_rows
        self._generator = generator
        self._choose = torch.argmin if isinstance(attack, LowestScored) else torch.argmax
        self._attack = None if isinstance(attack, LowestScored) else attack
        self._graph: Graphed[Decided] | None = None

    def __call__(self, obs: Tensor) -> Decided:
        """What every copy does on these observations."""
        if self._counting:
            self._eps = torch.where(self._counting().to(obs.device), self._budgets, 0)
        if obs.device.type != "cuda" or self._attack is None:
            self._input = obs
            return self._run()
        if self._graph is None:
            self._input = torch.empty_like(obs)  # the fixed place from which the graph reads
            generators = [self._generator] if isinstance(self._generator, Generator) else self._generator
            self._graph = Graphed(self._run, *generators, enabled=not _waits(self._attack))
        self._input.copy_(obs)
        return self._graph()

    def _run(self) -> Decided:
        clean_obs = as_float(self._input)
        scores = self._scores(clean_obs)
        clean = self._choose(scores, dim=1)
        if self._attack is None:
            return Decided(clean, clean, clean_obs, _moved(clean_obs, clean_obs), torch.zeros_like(clean) > 0)
        searched: AttackedPolicy = self._searched
        same_as: Tensor | None = None
        if self._open_rows:
            rows = self._open_rows(clean_obs, self._eps, scores)
            if _draws_nothing(self._attack):
                same_as = self._same_as(clean_obs, rows)
                rows &= same_as == torch.arange(len(same_as))
            if not rows.all():
                searched = OfOpenRows(searched, rows, scores.shape[1])
        eager = clean_obs.device.type != "cuda"
        seen = perturb(self._attack, searched, clean_obs, self._eps, self._generator, check=eager)
        seen = seen if same_as is None else seen[same_as]
        actions = self._choose(self._scores(seen), dim=1)
        return Decided(actions, clean, seen, _moved(seen, clean_obs), actions != clean)

    def _same_as(self, obs: Tensor, rows: Tensor) -> Tensor:
        """(N,) of each observation that is looked at the first that is the same and looked at too."""
        (looked_at,) = rows.nonzero(as_tuple=True)
        budgets = torch.as_tensor(self._eps).flatten().expand(len(rows))
        same_as = torch.arange(len(rows))
        same_as[looked_at] = looked_at[first_alike(obs[looked_at], budgets[looked_at])]
        return same_as

    def _scores(self, obs: Tensor) -> Tensor:
        with torch.no_grad(), full_precision():
            return self._policy(obs)


def _for_decisions(policy: Policy) -> Policy:
    """On a CPU IMPALA decides three times as fast where images have their channels last; others gain nothing."""
    if policy.device.type != "cpu" or policy.spec.kind != "impala":
        return policy
    quick = copy.deepcopy(policy)
    nn.utils.convert_conv2d_weight_memory_format(quick, torch.channels_last)
    return quick


def refuse_broken_scores(scores: Tensor) -> None:
    """An agent whose action scores are NaN or infinite does not choose."""
    if not scores.isfinite().all():
        raise BclError("the policy's action scores are not finite", "its training diverged, or its weights are damaged")


def _moved(seen: Tensor, obs: Tensor) -> Tensor:
    """(N,) how far each observation was moved; NaN where an element of either is not finite."""
    return (seen - obs).abs().flatten(1).amax(dim=1)


class Probe:
    """Looks for vanished gradients, for chance in the policy, and for a certified action that was changed."""

    def __init__(self, policy: Policy, searched: SearchForm, certificates: Mapping[float, Method]) -> None:
        self._policy = policy
        self._searched = searched
        self._certificates = certificates
        # Where gradients are looked for: through the whole policy, what rounding leaves of a dueling value stream would
        # hide that nothing else has any.
        self._exact = SearchForm(policy, "full")

    def __call__(self, slots: Sequence[Slot]) -> None:
        """At what the copies see whose steps count; each slot is told of its own."""
        counts = [int(slot.counting.sum()) for slot in slots]
        if not sum(counts):
            return
        obs = torch.cat([as_float(slot.obs)[torch.from_numpy(slot.counting)] for slot in slots])
        actions = torch.cat([slot.decided.actions[torch.from_numpy(slot.counting)] for slot in slots]).to(obs.device)
        with torch.no_grad():
            scores = self._policy(obs)
            again = self._policy(obs)
            searched = self._searched(obs)
        refuse_broken_scores(scores)
        if not searched.isfinite().all():
            raise BclError("the policy's action scores overflow in half precision", "evaluate with precision full")
        stochastic = not torch.equal(scores, again)
        if not stochastic:  # else the action was another draw's than the scores
            cells = [slot.cell for slot, count in zip(slots, counts, strict=True) for _ in range(count)]
            _refuse_broken_certificate(self._policy, obs, scores, actions, cells, quick_method(self._policy))
        blind = without_gradient(self._exact, obs).split(counts)
        for slot, count, without in zip(slots, counts, blind, strict=True):
            slot.probed += count
            slot.zero_gradients += int(without.sum())
            slot.stochastic |= stochastic

    def certificates_hold(self, slots: Sequence[Slot]) -> None:
        """Only whether an action that is certified in the store was changed."""
        for slot in slots:
            method = self._certificates.get(slot.cell.eps)
            if method is None or slot.stochastic:
                continue
            rows = torch.from_numpy(slot.counting)
            obs = as_float(slot.obs)[rows.to(slot.obs.device)]
            with torch.no_grad():
                scores = self._policy(obs)
            actions = slot.decided.actions[rows].to(obs.device)
            _refuse_broken_certificate(self._policy, obs, scores, actions, [slot.cell] * len(obs), method)


def without_gradient(searched: SearchForm, obs: Tensor) -> Tensor:
    """(N,) where the gradient of the cross-entropy is zero in every element, so that no attack can climb it."""
    _, _, gradient = ascent(CrossEntropy(), searched, obs, searched(obs).detach())
    return (gradient.flatten(1) == 0).all(dim=1)


def _refuse_broken_certificate(
    policy: Policy, obs: Tensor, scores: Tensor, actions: Tensor, cells: Sequence[Cell], method: Method
) -> None:
    """`cells`: of each observation."""
    eps = per_sample(torch.tensor([cell.eps for cell in cells], dtype=obs.dtype, device=obs.device), obs)
    try:
        holds = proven(policy, obs, eps, scores, method)
    except BclError:  # a layer without bounds: nothing is certified, so nothing can be broken
        return
    broken = (holds & (actions != scores.argmax(dim=1))).tolist()
    if any(broken):
        cell = cells[broken.index(True)]
        what = f"{cell.attack} changed an action that was certified at eps {cell.eps:.6g}"
        raise BclError(what, "the certificate is wrong: report it")
