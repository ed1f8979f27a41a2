"""A whole evaluation: every attack at every budget, each score stored when it is done."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

import torch

from bcl.attacks import lacks_source
from bcl.bounds import Method
from bcl.device import threads, useful_threads
from bcl.envs import VectorEnv
from bcl.evaluation.certify import USUAL_LENGTH, Certificate, certify, method_for, read_certificates
from bcl.evaluation.evaluation import Key, Score, append_score, longest_episodes, read_scores
from bcl.evaluation.plan import Cell, Conditions, Plan, network_passes
from bcl.evaluation.play import Follow, Progress, evaluate_cells, same_candidates
from bcl.games import AtariGame, ProcgenGame
from bcl.policies import Policy
from bcl.policies.files import fingerprint
from bcl.runs.results import CertificatesFolder, ScoresFolder
from bcl.settings import format_eps

Address = tuple[Conditions, Key]
"""Where the score of a cell is found."""
Begin = Callable[[str], Progress]
"""Called with what begins; the function it returns is called with the work done and the work in all."""
# Copies of a game that are played at once, over all cells of a pass.
GPU_COPIES = 512
ATARI_COPIES = 260  # `strong` on 20 episodes, and nominal play; ale-py makes emulators one after the other, 0.15 s each
CPU_COPIES = 512
PARTS = 1000  # into which progress divides a certificate, or the work of several processes


def no_progress(label: str) -> Progress:
    """Reports nothing."""
    return lambda done, of: None


def missing_cells(folder: ScoresFolder, conditions: Conditions, wanted: Sequence[Cell]) -> list[Cell]:
    """Those whose scores do not lie in a folder."""
    stored = _stored(folder, conditions, wanted)
    return [cell for cell in wanted if _address(conditions, cell) not in stored]


def _address(conditions: Conditions, cell: Cell) -> Address:
    return conditions.of(cell), cell.key


def _stored(folder: ScoresFolder, conditions: Conditions, wanted: Sequence[Cell]) -> dict[Address, Score]:
    """Scores of the games of these cells."""
    games = {conditions.of(cell) for cell in wanted}
    return {(of, key): score for of in games for key, score in read_scores(folder, of).items()}


def run_suite(
    policy: Policy,
    plan: Plan,
    wanted: Sequence[Cell],
    folder: ScoresFolder,
    progress: Begin = no_progress,
    ready: Callable[[Cell], Cell] = lambda cell: cell,
    part: int | None = None,
    published: Sequence[Certificate] = (),
    follow: Follow = lambda under_way: None,
) -> Iterator[Score]:
    """Every score: read from `folder`, or played and stored there. Where cells have games of their own, these differ in
    Procgen's levels alone. `ready` does what a cell needs first, such as training its adversary; `part`: which of
    several processes that share the work; `published`: certificates of the agent beside those of the folder; `follow`:
    as of `evaluate_cells`."""
    conditions = plan.conditions(fingerprint(policy), policy.device.type)
    addresses = [_address(conditions, cell) for cell in wanted]
    again = {cell.key for cell in wanted if lacks_source(cell.attack)}  # it may be another attack by now
    found = {
        address: score for address, score in _stored(folder, conditions, wanted).items() if address[1] not in again
    }
    missing = {address: cell for address, cell in zip(addresses, wanted, strict=True) if address not in found}
    overall = SuiteProgress(
        [missing[address] for address in _in_order(missing)], plan, progress, longest_episodes(folder, conditions.agent)
    )
    proofs = [*published, *(proof for _, proof in read_certificates(folder.certificates, conditions.agent))]
    methods = {cell.eps: method for cell in wanted if (method := method_for(cell.eps, proofs))}
    playing = _play(policy, plan, missing, overall, ready, methods, follow)
    count = useful_threads(policy.spec.obs_shape, plan.copies())
    try:
        for address in addresses:
            while address not in found:
                with threads(count):
                    done, score = next(playing)
                of, (attack, _) = done
                found[done] = dataclasses.replace(score, attack=attack)  # an attack may change as it is played
                append_score(folder, of, found[done], part)
            yield found[address]
    finally:
        playing.close()


class SuiteProgress:
    """How far all cells together are: passes through the network that were made, of those and the ones to come.

    A step costs what its attack does, and a cell plays until its longest episode ends: as long as the longest that is
    known of this agent at that budget, in whatever evaluation.
    """

    def __init__(self, cells: Sequence[Cell], plan: Plan, progress: Begin, longest: Mapping[float, int]) -> None:
        self._rounds = -(-plan.episodes // plan.copies())
        self._begin = progress
        self._longest = dict(longest)
        self._waiting = list(cells)
        self._playing: list[Cell] = []
        self._steps = 0  # of the cells that are played
        self._done = 0

    def begin(self, cells: Sequence[Cell]) -> Progress:
        """Cells that are played together; told of their steps."""
        label = cells[0].label
        report = self._begin(f"{label} and {len(cells) - 1} more" if len(cells) > 1 else label)
        self._playing = list(cells)
        self._waiting = self._waiting[len(cells) :]

        def told(steps: int, finished: int) -> None:
            self._done += (steps - self._steps) * sum(network_passes(cell.attack) for cell in self._playing)
            self._steps = steps
            left = sum(network_passes(cell.attack) * self._left(cell, 0) for cell in self._waiting)
            left += sum(network_passes(cell.attack) * self._left(cell, steps) for cell in self._playing)
            report(self._done, self._done + left)

        self._steps = 0
        return told

    def end(self, cell: Cell, score: Score) -> None:
        """One of those that are played has ended."""
        self._playing = [other for other in self._playing if other is not cell]  # attacks need not compare
        # Of those that are played together the first to end has the shortest episodes: it says little about the others.
        self._longest[cell.eps] = max(self._longest.get(cell.eps, 0), *score.lengths)

    def _left(self, cell: Cell, steps: int) -> int:
        """Steps that a cell has still to play; of one that played longer than was known, a tenth more."""
        longest = self._longest.get(cell.eps) or max(self._longest.values(), default=USUAL_LENGTH)
        return max(self._rounds * longest - steps, -(-steps // 10))


def _play(
    policy: Policy,
    plan: Plan,
    missing: Mapping[Address, Cell],
    overall: SuiteProgress,
    ready: Callable[[Cell], Cell],
    certificates: Mapping[float, Method],
    follow: Follow,
) -> Generator[tuple[Address, Score], None, None]:
    """Scores as they are done; several cells at once, those of one attack together."""
    ordered = _in_order(missing)
    passes = _passes(ordered, cells_at_once(policy, plan))
    with contextlib.ExitStack() as held:
        made = dict[Conditions, list[VectorEnv]]()
        for of in dict.fromkeys(of for of, _ in ordered):
            most = max(sum(other == of for other, _ in addresses) for addresses in passes)
            envs = make_envs(dataclasses.replace(plan, game=of.plan.game), most, policy.device)
            made[of] = [held.enter_context(contextlib.closing(env)) for env in envs]
        for addresses in passes:
            cells = [ready(missing[address]) for address in addresses]
            told = overall.begin(cells)
            free = {of: iter(envs) for of, envs in made.items()}
            # In the order of the cells; one that several share is there once.
            envs = [env for of, _ in addresses for env in itertools.islice(free[of], 1)]
            for number, score in evaluate_cells(policy, envs, cells, plan, certificates, told, follow):
                overall.end(cells[number], score)
                yield addresses[number], score  # not by the cell, whose attack may change as it is played


def _in_order(missing: Mapping[Address, Cell]) -> list[Address]:
    """As they are played: those of one attack together; of attacks from the same starts those of one budget."""
    attacks = [same_candidates(attack) for _, (attack, _) in missing]
    games = [of for of, _ in missing]

    def place(address: Address) -> tuple[int, int, float]:
        of, (attack, eps) = address
        kind = same_candidates(attack)
        return (attacks.index(kind), 0, 0.0) if kind is attack else (attacks.index(kind), games.index(of), eps)

    return sorted(missing, key=place)


def _passes(ordered: Sequence[Address], width: int) -> list[list[Address]]:
    """What is played side by side: as many as go together; of one at a time, all with the same candidates."""
    if width > 1:
        return [[*ordered[first : first + width]] for first in range(0, len(ordered), width)]
    alike = itertools.groupby(ordered, key=lambda address: (address[0], same_candidates(address[1][0]), address[1][1]))
    return [[*group] for _, group in alike]


def shares_environment(plan: Plan, device: torch.device) -> bool:
    """Whether several cells of a pass play on copies of one environment. Not on a CPU, where nothing is gained and
    cells that are done would go on playing, nor on Procgen, whose engine draws for all of its copies."""
    return device.type == "cuda" and not isinstance(plan.game, ProcgenGame)


def make_envs(plan: Plan, count: int, device: torch.device) -> list[VectorEnv]:
    """Environments for so many cells; where they share, two, of which one steps while the other's cells decide."""
    if count == 0 or not shares_environment(plan, device):
        return [plan.make_env(plan.copies(), device) for _ in range(count)]
    return [_make_shared(plan, part, device) for part in (-(-count // 2), count // 2) if part]


def _make_shared(plan: Plan, count: int, device: torch.device) -> VectorEnv:
    """One environment for so many cells."""
    game = plan.game
    if isinstance(game, AtariGame):
        game = dataclasses.replace(game, first_noops=game.first_noops * count)
    return dataclasses.replace(plan, game=game).make_env(plan.copies() * count, device)


def cells_at_once(policy: Policy, plan: Plan) -> int:
    """How many cells are played side by side: as many as cost little more than one."""
    if policy.device.type == "cuda":
        copies = ATARI_COPIES if isinstance(plan.game, AtariGame) else GPU_COPIES
    else:
        copies = CPU_COPIES if len(policy.spec.obs_shape) == 1 else 0  # images keep the cores busy one cell at a time
    return max(1, copies // plan.copies())


def read_certified(
    folder: CertificatesFolder, plan: Plan, policy: Policy, method: Method
) -> tuple[Conditions, dict[float, Certificate]]:
    """Stored certificates by budget, and their conditions."""
    plan = dataclasses.replace(plan, precision="full")
    conditions = plan.conditions(fingerprint(policy), policy.device.type)
    found = read_certificates(folder, conditions.agent)
    return conditions, {proof.eps: proof for of, proof in found if of == conditions and proof.method == method}


def run_certificates(
    policy: Policy,
    plan: Plan,
    budgets: Sequence[float],
    method: Method,
    folder: CertificatesFolder,
    progress: Begin = no_progress,
    part: int | None = None,
) -> Iterator[Certificate]:
    """Yield the certificate of every budget, stored like scores."""
    conditions, found = read_certified(folder, plan, policy, method)
    missing = [eps for eps in dict.fromkeys(budgets) if eps not in found]
    count = useful_threads(policy.spec.obs_shape, plan.episodes)
    for eps in budgets:
        if eps not in found:
            report = progress(f"{method} at {format_eps(eps)}")
            before = PARTS * missing.index(eps)

            def tell(share: float, report: Progress = report, before: int = before) -> None:
                report(before + round(PARTS * share), PARTS * len(missing))

            with contextlib.closing(plan.make_env(plan.episodes, policy.device)) as env, threads(count):
                found[eps] = certify(policy, env, eps, method=method, seed=plan.seed, progress=tell)
            folder.append(found[eps].to_dict() | conditions.to_dict(), part)
        yield found[eps]
