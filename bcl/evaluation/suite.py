"""A whole evaluation: every attack at every budget, each cell stored when it is done."""

import contextlib
import dataclasses
import functools
import hashlib
import math
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch

import bcl
from bcl.attacks import Attack
from bcl.bounds import Method
from bcl.device import threads, worth
from bcl.envs import VariedStarts, VectorEnv, make_env
from bcl.envs.vector import seed_list
from bcl.errors import ConfigError
from bcl.evaluation.certify import USUAL_LENGTH, Certificate, certify
from bcl.evaluation.evaluate import Cell, Precision, Progress, Protocol, evaluate, evaluate_cells
from bcl.evaluation.score import NO_ATTACK, Score
from bcl.games import REFERENCE_NOOPS, AtariGame, Game, ProcgenGame, game_to_dict
from bcl.policies import Policy
from bcl.policies.files import fingerprint
from bcl.runs import store
from bcl.settings import format_eps

Starts = Literal["game", "varied"]
CERTS = "certs"  # folder of certificates, beside that of scores

# Copies of a game that are played at once, over all cells of a pass.
GPU_COPIES = 512
ATARI_COPIES = 160  # ale-py makes emulators one after the other, 0.15 s each
CPU_COPIES = 512
PARTS = 1000  # into which progress divides the whole


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
    starts: Starts = field(default="game", repr=False)
    """`game`: as the game has them, on Atari the no-ops alone; `varied`: then random actions (`bcl.envs.starts`)."""

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise ConfigError(f"{self.episodes} episodes cannot be judged", "ask for at least 1")
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


def cells(attacks: Sequence[Attack], budgets: Sequence[float]) -> list[Cell]:
    """Nominal play, then every attack at every budget above 0."""
    return [Cell(None, 0.0), *(Cell(attack, eps) for eps in sorted({*budgets}) if eps > 0 for attack in attacks)]


def game_for_evaluation(game: Game, env_set: str | None, max_steps: int, starts: int = 0) -> Game:
    """The game as it is judged: the set of levels (Procgen); the step limit, for the first `starts` episodes the
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
    progress: Callable[[str], Progress] = lambda label: lambda done, of: None,
    ready: Callable[[Cell], Cell] = lambda cell: cell,
) -> Iterator[Score]:
    """Yield every score; cells found in `folder` are read, the others played and written there when done. `progress` is
    told what is played and gives what is told how much of how much is done, of all that is missing. `ready` makes a cell that
    has to be played ready for it: adversaries that learn are trained there."""
    device = next(policy.parameters()).device
    identity = fingerprint(policy)
    files = [cell_file(folder, cell, plan, identity, device.type) for cell in wanted]
    missing = {file: cell for file, cell in zip(files, wanted, strict=True) if not file.exists()}
    known = [Score.from_dict(store.read_json(file), file) for file in files if file.exists()][:1]
    bar = Bar([*missing.values()], plan, progress, known[0].lengths if known else ())
    playing = _play(policy, plan, missing, bar, ready, _certified(folder.parent / CERTS, identity))
    count = worth(policy.spec.obs_shape, plan.copies())
    try:
        for file in files:
            while not file.exists():
                with threads(count):
                    done, score = next(playing)
                bar.finished(missing[done], score.lengths)
                store.write_json(done, score.to_dict() | _about(plan, identity, device))
            yield Score.from_dict(store.read_json(file), file)
    finally:
        playing.close()


class Bar:
    """How far all cells together are: by what each costs, and inside a pass by steps, since episodes can be long."""

    def __init__(
        self, cells: Sequence[Cell], plan: Plan, progress: Callable[[str], Progress], lengths: Sequence[int]
    ) -> None:
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
    missing: Mapping[Path, Cell],
    bar: Bar,
    ready: Callable[[Cell], Cell],
    certificates: Mapping[float, Method],
) -> Generator[tuple[Path, Score], None, None]:
    """Files with the scores that belong there; several cells at once, those of one attack together."""
    device = next(policy.parameters()).device
    attacks = [repr(cell.attack) for cell in missing.values()]
    ordered = sorted(missing, key=lambda file: attacks.index(repr(missing[file].attack)))
    envs: list[VectorEnv] = []
    width = tables_at_once(policy, plan)
    try:
        envs += make_envs(plan, min(width, len(ordered)), device)
        for first in range(0, len(ordered), width):
            files = ordered[first : first + width]
            cells = [ready(missing[file]) for file in files]
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
                yield files[number], score
    finally:
        for env in envs:
            env.close()


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


def _certified(folder: Path, policy: str) -> dict[float, Method]:
    """Budgets at which certificates of this agent lie in a folder, each with the quickest method used there."""
    found: dict[float, Method] = {}
    proofs = [
        data for path in folder.glob("*.json") if str((data := store.read_json(path)).get("policy")).startswith(policy)
    ]
    for method in reversed(get_args(Method)):
        found |= {Certificate.from_dict(data).eps: method for data in proofs if data.get("method") == method}
    return found


def tables_at_once(policy: Policy, plan: Plan) -> int:
    """How many cells are played side by side: as many as cost little more than one."""
    if next(policy.parameters()).is_cuda:
        copies = ATARI_COPIES if isinstance(plan.game, AtariGame) else GPU_COPIES
    else:
        copies = CPU_COPIES if len(policy.spec.obs_shape) == 1 else 0  # images keep the cores busy one cell at a time
    return max(1, copies // plan.copies())


def run_certificates(
    policy: Policy,
    plan: Plan,
    budgets: Sequence[float],
    method: Method,
    folder: Path,
    progress: Callable[[str], Progress] = lambda label: lambda done, of: None,
) -> Iterator[Certificate]:
    """Yield the certificate of every budget, stored like scores."""
    device = next(policy.parameters()).device
    files = {eps: certificate_file(folder, method, eps, plan, policy) for eps in budgets}
    missing, count = [eps for eps in files if not files[eps].exists()], worth(policy.spec.obs_shape, plan.episodes)
    for eps, file in files.items():

        def prove(eps: float = eps) -> dict[str, Any]:
            report, before = progress(f"{method} at {format_eps(eps)}"), PARTS * missing.index(eps)
            with contextlib.closing(plan.make_env(plan.episodes, device)) as env, threads(count):
                proof = certify(
                    policy, env, eps, method=method, episodes=plan.episodes, seed=plan.seed,
                    progress=lambda share: report(before + round(PARTS * share), PARTS * len(missing)),
                )  # fmt: skip
            return proof.to_dict() | _about(plan, fingerprint(policy), device)

        yield Certificate.from_dict(store.once(file, prove))


def run_floor(policy: Policy, plan: Plan, folder: Path, progress: Progress = lambda done, of: None) -> Score:
    """Play in which every action is the one the policy scores lowest: what an adversary without limits would force."""

    def play() -> dict[str, Any]:
        env = plan.make_env(plan.copies(), next(policy.parameters()).device)
        bar = Bar([Cell(None, 0.0)], plan, lambda label: progress, ())
        with contextlib.closing(env), threads(worth(policy.spec.obs_shape, plan.copies())):
            score = evaluate(
                policy, env, None, 0.0, episodes=plan.episodes, seed=plan.seed, protocol=plan.protocol,
                choose=functools.partial(torch.argmin, dim=1), progress=bar.begin([Cell(None, 0.0)]),
            )  # fmt: skip
        return score.to_dict()

    return Score.from_dict(store.once(folder / _file_name("lowest-scored", 0.0, plan, _identity(policy)), play))


def _about(plan: Plan, policy: str, device: torch.device) -> dict[str, Any]:
    """Whose result it is and what it was made with, to be kept beside it."""
    return {
        "game": game_to_dict(plan.game),
        "num_envs": plan.copies(),
        "policy": f"{policy} on {device.type}",
        "bcl": bcl.__version__,
        "torch": torch.__version__,
        "device": str(device),
    }


def _identity(policy: Policy) -> str:
    return f"{fingerprint(policy)} on {next(policy.parameters()).device.type}"


def cell_file(folder: Path, cell: Cell, plan: Plan, policy: str, device: str) -> Path:
    """Where `run_suite` keeps a cell: `policy` is a fingerprint, `device` the type of the one that plays it."""
    attack = NO_ATTACK if cell.attack is None else repr(cell.attack)
    return folder / _file_name(attack, cell.eps, plan, f"{policy} on {device}")


def certificate_file(folder: Path, method: Method, eps: float, plan: Plan, policy: Policy) -> Path:
    """Where `run_certificates` keeps what it proved."""
    return folder / _file_name(method, eps, plan, _identity(policy))


def _file_name(what: str, eps: float, plan: Plan, policy: str) -> str:
    """A name people can read, unique for everything that decides the result."""
    facts: tuple[object, ...] = (what, eps, plan, plan.copies(), policy, bcl.__version__)
    facts += ("varied",) * (plan.starts == "varied")  # not part of the plan's repr, which older names are made from
    words = re.sub(r"[^a-z0-9]+", "-", f"eps {format_eps(eps)} {what}".lower()).strip("-")
    return f"{words[:60]}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:8]}.json"
