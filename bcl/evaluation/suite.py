"""A whole evaluation: every attack at every budget, each score stored when it is done."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from bcl.attacks import Attack, recorded
from bcl.bounds import METHODS, Method
from bcl.envs import VariedStarts, VectorEnv, make_env
from bcl.envs.vector import seed_list
from bcl.errors import ConfigError
from bcl.evaluation.certify import USUAL_LENGTH, Certificate, append_certificate, certify, read_certificates
from bcl.evaluation.episodes import Protocol
from bcl.evaluation.evaluation import Conditions, Key, Starts, append_score, read_scores
from bcl.evaluation.play import Cell, Precision, Progress, evaluate_cells
from bcl.evaluation.score import Score
from bcl.games import REFERENCE_NOOPS, AtariGame, Game, ProcgenGame
from bcl.policies import Policy
from bcl.policies.files import fingerprint
from bcl.quantities import format_eps
from bcl.threads import threads, worth

Begin = Callable[[str], Progress]
"""Told what begins; the result is told how much of how much is done, of all that is missing."""
CERTS = "certs"  # folder of certificates, beside that of scores
# Copies of a game that are played at once, over all cells of a pass.
GPU_COPIES = 512
ATARI_COPIES = 160  # ale-py makes emulators one after the other, 0.15 s each
CPU_COPIES = 512
PARTS = 1000  # into which progress divides the whole


def no_progress(label: str) -> Progress:
    """Tells nobody."""
    return lambda done, of: None


@dataclass(frozen=True)
class Plan:
    """What is asked of every cell."""

    game: Game
    episodes: int
    seed: int = 0
    protocol: Protocol = "fixed"
    precision: Precision = "fast"
    num_envs: int = 0
    """Copies played at once; 0: one per episode, at most 64, and always 64 where the protocol is `first`."""
    starts: Starts = field(default="game", repr=False)  # folders of learned adversaries are named by the repr
    """`game`: as the game has them, on Atari the no-ops alone; `varied`: then random actions (`bcl.envs.VariedStarts`)."""

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise ConfigError(f"{self.episodes} episodes cannot be evaluated", "ask for at least 1")
        if self.num_envs < 0:
            raise ConfigError(f"{self.num_envs} copies cannot be played", "give 0 or more")
        seed_list(self.seed, self.copies())

    def make_env(self, copies: int, device: torch.device) -> VectorEnv:
        """Copies of the game whose episodes begin as asked."""
        env = make_env(self.game, copies, device)
        return VariedStarts(env) if self.starts == "varied" else env

    def copies(self) -> int:
        """How many copies of the game are played at once."""
        return self.num_envs or (64 if self.protocol == "first" else min(self.episodes, 64))

    def conditions(self, agent: str, device: str) -> Conditions:
        """Those of its scores, for an agent with this fingerprint on this kind of device."""
        precision = self.precision if device == "cuda" else "full"
        return Conditions(
            agent, device, self.game, self.copies(), self.episodes, self.seed, self.protocol, precision, self.starts
        )


def cells(attacks: Sequence[Attack], budgets: Sequence[float]) -> list[Cell]:
    """Nominal play, then every attack at every budget above 0."""
    return [Cell(None, 0.0), *(Cell(attack, eps) for eps in sorted({*budgets}) if eps > 0 for attack in attacks)]


def missing_cells(folder: Path, conditions: Conditions, wanted: Sequence[Cell]) -> list[Cell]:
    """Those whose scores do not lie in a folder."""
    stored = read_scores(folder, conditions)
    return [cell for cell in wanted if (recorded(cell.attack), cell.eps) not in stored]


def game_for_evaluation(game: Game, env_set: str | None, max_steps: int, starts: int = 0) -> Game:
    """The game as it is evaluated: the set of levels (Procgen); the step limit, for the first `starts` episodes the
    reference's no-ops, and v1's moves after a lost life (Atari), which its reference plays in evaluations alone."""
    if isinstance(game, ProcgenGame):
        if env_set not in (None, "train", "eval"):
            raise ConfigError(f"unknown set of levels '{env_set}'", "train or eval")
        return dataclasses.replace(game, num_levels=0) if env_set == "eval" else game
    if env_set is not None:
        raise ConfigError(f"'{game.id}' has no sets of levels", "--env-set is for Procgen games")
    if isinstance(game, AtariGame):
        moves = game.life_reset or game.pipeline == "v1"
        return dataclasses.replace(game, max_steps=max_steps, first_noops=REFERENCE_NOOPS[:starts], life_reset=moves)
    return game


def run_suite(
    policy: Policy,
    plan: Plan,
    wanted: Sequence[Cell],
    folder: Path,
    progress: Begin = no_progress,
    ready: Callable[[Cell], Cell] = lambda cell: cell,
    part: int | None = None,
) -> Iterator[Score]:
    """Yield every score; those found in `folder` are read, the others played and stored there when done. `ready` makes a cell
    that has to be played ready for it: adversaries that learn are trained there. `part`: which of several processes that
    share the work."""
    device = next(policy.parameters()).device
    conditions = plan.conditions(fingerprint(policy), device.type)
    found = read_scores(folder, conditions)
    keys = [(recorded(cell.attack), cell.eps) for cell in wanted]
    missing = {key: cell for key, cell in zip(keys, wanted, strict=True) if key not in found}
    bar = Bar([*missing.values()], plan, progress, next((found[key].lengths for key in keys if key in found), ()))
    proven = _certified(folder.parent / CERTS, conditions.agent)
    playing = _play(policy, plan, missing, bar, ready, proven)
    count = worth(policy.spec.obs_shape, plan.copies())
    try:
        for key in keys:
            while key not in found:
                with threads(count):
                    done, score = next(playing)
                found[done] = dataclasses.replace(score, attack=done[0])  # an attack may change as it is played
                append_score(folder, conditions, found[done], part)
            yield found[key]
    finally:
        playing.close()


class Bar:
    """How far all cells together are: by what each costs, and inside a pass by steps, since episodes can be long."""

    def __init__(self, cells: Sequence[Cell], plan: Plan, progress: Begin, lengths: Sequence[int]) -> None:
        self._plan, self._begin = plan, progress
        self._all, self._done = sum(network_passes(cell.attack) for cell in cells), 0.0
        self._length = max(lengths, default=USUAL_LENGTH)

    def begin(self, cells: Sequence[Cell]) -> Progress:
        """Cells that are played together; told of their steps and episodes."""
        label = cells[0].label
        report = self._begin(f"{label} and {len(cells) - 1} more" if len(cells) > 1 else label)
        before, cost = self._done, sum(network_passes(cell.attack) for cell in cells)
        rounds, episodes = -(-self._plan.episodes // self._plan.copies()), self._plan.episodes * len(cells)

        def told(steps: int, finished: int) -> None:
            share = max(finished / episodes, min(0.95, steps / (rounds * self._length)))
            report(round(PARTS * (before + share * cost) / self._all), PARTS)

        return told

    def finished(self, cell: Cell, lengths: Sequence[int]) -> None:
        """One cell is done, after episodes of these lengths."""
        self._done += network_passes(cell.attack)
        self._length = max(lengths)


def network_passes(attack: Attack | None) -> int:
    """About how often a step under this attack goes through the network."""
    return math.prod(getattr(attack, name, 1) for name in ("steps", "restarts", "starts", "queries"))


def _play(
    policy: Policy,
    plan: Plan,
    missing: Mapping[Key, Cell],
    bar: Bar,
    ready: Callable[[Cell], Cell],
    certificates: Mapping[float, Method],
) -> Generator[tuple[Key, Score], None, None]:
    """Scores as they are done; several cells at once, those of one attack together."""
    device = next(policy.parameters()).device
    attacks = [attack for attack, _ in missing]
    ordered = sorted(missing, key=lambda key: attacks.index(key[0]))
    width = tables_at_once(policy, plan)
    with contextlib.ExitStack() as held:
        made = make_envs(plan, min(width, len(ordered)), device)
        envs = [held.enter_context(contextlib.closing(env)) for env in made]
        for first in range(0, len(ordered), width):
            keys = ordered[first : first + width]
            cells = [ready(missing[key]) for key in keys]
            together = evaluate_cells(
                policy,
                envs,
                cells,
                episodes=plan.episodes,
                seed=plan.seed,
                protocol=plan.protocol,
                precision=plan.precision,
                copies=plan.copies(),
                certificates=certificates,
                progress=bar.begin(cells),
            )
            for number, score in together:
                bar.finished(cells[number], score.lengths)
                yield keys[number], score


def shares_environment(plan: Plan, device: torch.device) -> bool:
    """Whether all cells of a pass play on copies of one environment. Not on a CPU, where nothing is gained and cells that are
    done would go on playing, nor on Procgen, whose engine draws for all of its copies."""
    return device.type == "cuda" and not isinstance(plan.game, ProcgenGame)


def make_envs(plan: Plan, count: int, device: torch.device) -> list[VectorEnv]:
    """Environments for so many cells."""
    if count == 0 or not shares_environment(plan, device):
        return [plan.make_env(plan.copies(), device) for _ in range(count)]
    game = plan.game
    if isinstance(game, AtariGame):
        game = dataclasses.replace(game, first_noops=game.first_noops * count)
    return [dataclasses.replace(plan, game=game).make_env(plan.copies() * count, device)]


def _certified(folder: Path, agent: str) -> dict[float, Method]:
    """Budgets at which certificates of this agent lie in a folder, each with the quickest method used there."""
    proofs = [proof for _, proof in read_certificates(folder, agent)]
    proofs.sort(key=lambda proof: -METHODS.index(proof.method))
    return {proof.eps: proof.method for proof in proofs}


def tables_at_once(policy: Policy, plan: Plan) -> int:
    """How many cells are played side by side: as many as cost little more than one."""
    if next(policy.parameters()).is_cuda:
        copies = ATARI_COPIES if isinstance(plan.game, AtariGame) else GPU_COPIES
    else:
        copies = CPU_COPIES if len(policy.spec.obs_shape) == 1 else 0  # images keep the cores busy one cell at a time
    return max(1, copies // plan.copies())


def certificate_conditions(plan: Plan, policy: Policy) -> Conditions:
    """Those of certificates, which are always proven in full precision."""
    device = next(policy.parameters()).device.type
    return dataclasses.replace(plan.conditions(fingerprint(policy), device), precision="full")


def missing_certificates(
    folder: Path, plan: Plan, policy: Policy, method: Method, wanted: Sequence[float]
) -> list[float]:
    """The budgets whose certificates do not lie in a folder."""
    stored = _stored_certificates(folder, certificate_conditions(plan, policy), method)
    return [eps for eps in dict.fromkeys(wanted) if eps not in stored]


def _stored_certificates(folder: Path, conditions: Conditions, method: Method) -> dict[float, Certificate]:
    found = read_certificates(folder, conditions.agent)
    return {proof.eps: proof for of, proof in found if of == conditions and proof.method == method}


def run_certificates(
    policy: Policy,
    plan: Plan,
    budgets: Sequence[float],
    method: Method,
    folder: Path,
    progress: Begin = no_progress,
    part: int | None = None,
) -> Iterator[Certificate]:
    """Yield the certificate of every budget, stored like scores."""
    device = next(policy.parameters()).device
    conditions = certificate_conditions(plan, policy)
    found = _stored_certificates(folder, conditions, method)
    missing = [eps for eps in dict.fromkeys(budgets) if eps not in found]
    count = worth(policy.spec.obs_shape, plan.episodes)
    for eps in budgets:
        if eps not in found:
            report, before = progress(f"{method} at {format_eps(eps)}"), PARTS * missing.index(eps)

            def tell(share: float, report: Progress = report, before: int = before) -> None:
                report(before + round(PARTS * share), PARTS * len(missing))

            with contextlib.closing(plan.make_env(plan.episodes, device)) as env, threads(count):
                found[eps] = certify(
                    policy, env, eps, method=method, episodes=plan.episodes, seed=plan.seed, progress=tell
                )
            append_certificate(folder, conditions, found[eps], part)
        yield found[eps]
