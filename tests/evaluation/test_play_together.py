"""Cells played side by side have the scores they would have alone."""

import contextlib
import dataclasses
from dataclasses import dataclass

import pytest
import torch
from torch import Generator, Tensor

from bcl.api.measuring import untrained_policy
from bcl.attacks import (
    FGSM,
    KL,
    PGD,
    RIFGSM,
    SUITES,
    CornerNoise,
    Margin,
    MinBest,
    Multi,
    MultiT,
    Square,
    UniformNoise,
    WorstAction,
    perturb,
)
from bcl.attacks.pgd import Together
from bcl.attacks.ri_fgsm import StartsTogether
from bcl.config import resolve
from bcl.envs import make_env
from bcl.evaluation import Cell, Plan, evaluate, evaluate_cells, run_suite, suite
from bcl.evaluation.play import ActionChooser, SharedEnv
from bcl.evaluation.suite import cells_at_once
from bcl.policies import Policy, PolicySpec
from bcl.runs.results import ScoresFolder

ATTACKS = [*SUITES["strong"], FGSM(), UniformNoise(), CornerNoise()]
GAME = resolve("cartpole").game
pytestmark = pytest.mark.usefixtures("short_games")


@pytest.fixture(scope="module")
def policy() -> Policy:
    """Pushes the cart to where the pole leans: balances for long, and falls earlier the larger the budget."""
    with contextlib.closing(make_env(GAME, 1)) as env:
        policy = Policy(PolicySpec("plain-mlp", (4,), 2, env.low, env.high, (), game=GAME)).eval()
    with torch.no_grad():
        policy.network.model[1].weight.copy_(torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.1, 0.3, 1.0, 1.0]]))
        policy.network.model[1].bias.zero_()
    return policy


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
@pytest.mark.parametrize("shape", [(4,), (1, 36, 36)], ids=str)
def test_rows_with_budgets_and_generators_of_their_own_get_what_they_would_get_alone(attack, shape):
    if shape != (4,) and getattr(attack, "starts", 0) > 100:
        attack = type(attack)(starts=70)  # more than are drawn at once
    torch.manual_seed(1)
    kind = "plain-mlp" if len(shape) == 1 else "plain-cnn"
    policy = Policy(PolicySpec(kind, shape, 3, (0.0,), (1.0,), (8,) if len(shape) == 1 else ())).double().eval()
    obs = torch.rand(6, *shape, dtype=torch.float64)
    rows, budgets = (3, 3), (0.05, 0.2)

    def generators() -> list[Generator]:
        return [Generator().manual_seed(seed) for seed in (7, 8)]

    eps = torch.tensor(budgets, dtype=torch.float64).repeat_interleave(torch.tensor(rows))
    together = perturb(attack, policy, obs, eps, generators())
    parts = zip(obs.split(rows), budgets, generators(), strict=True)
    alone = torch.cat([perturb(attack, policy, part, budget, own) for part, budget, own in parts])
    assert torch.allclose(together, alone, atol=1e-12)
    moved = (together - obs).abs().flatten(1).amax(dim=1)
    assert (moved <= eps + 1e-12).all()


def play(policy: Policy, cells: list[Cell], episodes: int = 4, seed: int = 5) -> dict[str, object]:
    envs = [make_env(GAME, 3) for _ in cells]  # one copy plays two episodes
    return {
        cells[i].label: score
        for i, score in evaluate_cells(policy, envs, cells, Plan(GAME, episodes, seed, num_envs=3))
    }


@pytest.mark.parametrize(
    "attack", [PGD(10, 0.2), RIFGSM(), PGD(5, 0.4, random_start=True, restarts=2), Square(20)], ids=repr
)
def test_scores_of_budgets_played_together_are_those_of_budgets_played_alone(policy, attack):
    cells = [Cell(None, 0.0), *(Cell(attack, eps) for eps in (0.02, 0.3, 1.0))]
    together = play(policy, cells)
    alone = {
        cell.label: evaluate(policy, make_env(GAME, 3), cell.attack, cell.eps, episodes=4, seed=5) for cell in cells
    }
    assert together == alone
    assert len({score.returns for score in together.values()}) > 1


@pytest.mark.parametrize("spare", [0, 2])
def test_cells_that_share_an_environment_have_the_scores_of_environments_of_their_own(policy, spare):
    cells = [Cell(None, 0.0), *(Cell(attack, eps) for attack in (PGD(3, 0.4), UniformNoise()) for eps in (0.1, 0.3))]
    shared = make_env(GAME, 3 * (len(cells) + spare))
    together = evaluate_cells(policy, [shared], cells, Plan(shared.game, 4, 5, num_envs=3))
    assert {cells[i].label: score for i, score in together} == play(policy, cells)


def test_atari_cells_share_an_environment_with_the_starts_they_would_have_alone(tmp_path, monkeypatch):
    # A copy is reset until it has its number of no-ops, each of which is one of 30: two copies are enough.
    game = dataclasses.replace(resolve("pong").game, max_steps=12, first_noops=(7, 30))
    policy = untrained_policy(resolve("pong").game, "cpu")
    plan = Plan(game, episodes=2)
    cells = [Cell(None, 0.0), *(Cell(attack, eps) for attack in (UniformNoise(), CornerNoise()) for eps in (0.2, 0.5))]
    alone = list(run_suite(policy, plan, cells, ScoresFolder(tmp_path / "alone")))
    monkeypatch.setattr(suite, "shares_environment", lambda plan, device: True)
    monkeypatch.setattr(suite, "cells_at_once", lambda policy, plan: 3)
    assert list(run_suite(policy, plan, cells, ScoresFolder(tmp_path / "shared"))) == alone
    envs = suite.make_envs(plan, 3, torch.device("cpu"))
    assert [env.num_envs for env in envs] == [4, 2]
    assert [env.game.first_noops for env in envs] == [(7, 30) * 2, (7, 30)]
    for env in envs:
        env.close()


def test_one_environment_steps_while_the_cells_of_another_decide(policy, monkeypatch):
    events = []

    def noted(kind, name, number_of):
        do = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda self: (events.append(f"{name} {number_of(self)}"), do(self))[1])

    attacks = [PGD(2, 0.5), UniformNoise(), CornerNoise()]
    noted(SharedEnv, "send", lambda one: [attacks.index(slot.cell.attack) for slot in one.slots])
    noted(SharedEnv, "receive", lambda one: [attacks.index(slot.cell.attack) for slot in one.slots])
    noted(ActionChooser, "_run", lambda one: attacks.index(one._attack))
    # The first environment has two cells, the second two of which one is decided together with one of the first.
    cells = [Cell(attacks[0], 0.1), Cell(attacks[1], 0.1), Cell(attacks[1], 0.2), Cell(attacks[2], 0.1)]
    envs = [make_env(GAME, 4), make_env(GAME, 4)]
    next(evaluate_cells(policy, envs, cells, Plan(GAME, 2, 0, num_envs=2)))
    begin = [
        *("_run 0", "_run 1", "_run 2"),
        "send [0, 1]",
        "send [1, 2]",
        "receive [0, 1]",
        "_run 0",
        "receive [1, 2]",
    ]
    then = ["_run 1", "_run 2", *begin[3:]]
    assert events[: len(begin + then)] == begin + then


def test_several_attacks_at_once(policy):
    cells = [Cell(attack, eps) for attack in (PGD(3, 0.4), UniformNoise()) for eps in (0.1, 0.3)]
    assert play(policy, cells) == {label: score for cell in cells for label, score in play(policy, [cell]).items()}


CLIMBS = [
    PGD(5, 0.4, random_start=True, restarts=2),
    PGD(5, 0.4, random_start=True, restarts=2, objective=Margin()),
    PGD(5, 0.4, random_start=True, restarts=3, objective=MinBest()),
    PGD(5, 0.4, random_start=True, objective=KL()),
    WorstAction(5, 0.4),
]


def test_climbs_of_as_many_steps_are_rows_of_one_batch_with_the_scores_they_have_alone(policy, monkeypatch):
    batches = []
    called = Together.__call__
    monkeypatch.setattr(
        Together, "__call__", lambda self, *given: (batches.append(self.attacks), called(self, *given))[1]
    )
    cells = [Cell(attack, eps) for eps in (0.3, 1.0) for attack in (*CLIMBS, PGD(3, 0.4))]
    together = play(policy, cells)
    assert batches[0] == tuple(attack for attack in CLIMBS for _ in range(2))
    alone = {label: score for cell in cells for label, score in play(policy, [cell]).items()}
    assert together == alone
    assert len(together) == len(cells)
    assert len({score.returns for score in together.values()}) > 3


@pytest.mark.parametrize("shape", [(4,), (1, 36, 36)], ids=str)
def test_climbs_together_find_what_each_finds_alone(shape):
    torch.manual_seed(1)
    kind = "plain-mlp" if len(shape) == 1 else "plain-cnn"
    policy = Policy(PolicySpec(kind, shape, 3, (0.0,), (1.0,), (8,) if len(shape) == 1 else ())).double().eval()
    attacks = tuple(attack for attack in CLIMBS for _ in range(2))
    obs = torch.rand(2 * len(attacks), *shape, dtype=torch.float64)
    budgets = [0.05, 0.2] * len(CLIMBS)

    def generators() -> list[Generator]:
        return [Generator().manual_seed(seed) for seed in range(len(attacks))]

    eps = torch.tensor(budgets, dtype=torch.float64).repeat_interleave(2)
    together = perturb(Together(attacks), policy, obs, eps, generators())
    parts = zip(attacks, obs.split(2), budgets, generators(), strict=True)
    alone = torch.cat([perturb(attack, policy, part, budget, own) for attack, part, budget, own in parts])
    assert torch.allclose(together, alone, atol=1e-12)


SCANS = (Multi(6), MultiT(6))


def test_multi_and_multi_t_are_rows_of_one_batch_with_the_scores_they_have_alone(policy, monkeypatch):
    batches = []
    called = StartsTogether.__call__
    monkeypatch.setattr(
        StartsTogether, "__call__", lambda self, *given: (batches.append(self.attacks), called(self, *given))[1]
    )
    cells = [Cell(attack, eps) for eps in (0.3, 0.5, 1.0) for attack in (*SCANS, Multi(3))]
    together = play(policy, cells)
    assert batches[0] == tuple(attack for attack in SCANS for _ in range(3))
    assert together == {label: score for cell in cells for label, score in play(policy, [cell]).items()}
    assert len({score.returns for score in together.values()}) > 3


@pytest.mark.parametrize("leaves_settled", [True, False])
def test_multi_and_multi_t_together_find_what_each_finds_alone(leaves_settled):
    torch.manual_seed(1)
    policy = Policy(PolicySpec("plain-cnn", (1, 36, 36), 3, (0.0,), (1.0,), ())).double().eval()
    attacks = tuple(kind(80, leaves_settled=leaves_settled) for kind in (Multi, MultiT, Multi))
    obs = torch.rand(2, 1, 36, 36, dtype=torch.float64).repeat(3, 1, 1, 1)
    budgets = [0.05, 0.05, 0.3]

    def generators() -> list[Generator]:
        return [Generator().manual_seed(seed) for seed in (0, 0, 1)]

    eps = torch.tensor(budgets, dtype=torch.float64).repeat_interleave(2)
    together = perturb(StartsTogether(attacks), policy, obs, eps, generators())
    parts = zip(attacks, obs.split(2), budgets, generators(), strict=True)
    alone = [perturb(attack, policy, part, budget, own) for attack, part, budget, own in parts]
    assert torch.allclose(together, torch.cat(alone), atol=1e-12)
    assert StartsTogether(attacks).leaves_settled == leaves_settled


def test_copies_whose_episodes_are_done_are_not_attacked_any_more(policy, monkeypatch):
    seen = []
    called = Multi._try
    monkeypatch.setattr(
        Multi, "_try", lambda self, policy, obs, *more: (seen.append(len(obs)), called(self, policy, obs, *more))[1]
    )
    cell = Cell(Multi(6), 0.5)
    [left_alone] = play(policy, [cell]).values()
    counts = seen.copy()
    [to_the_end] = play(policy, [Cell(Multi(6, leaves_settled=False), 0.5)]).values()
    assert left_alone == to_the_end
    first, second, *others = to_the_end.lengths
    played = [first + second, *others]  # by each copy
    assert len({*played}) > 1
    assert counts == [sum(steps > step for steps in played) for step in range(max(played))]


def test_rows_without_a_budget_stay_and_change_nothing_for_the_others():
    torch.manual_seed(1)
    policy = Policy(PolicySpec("plain-mlp", (4,), 3, (0.0,), (1.0,), (8,))).double().eval()
    obs = torch.rand(4, 4, dtype=torch.float64)
    eps = torch.tensor([0.2, 0.1, 0.2, 0.3], dtype=torch.float64)
    whole = perturb(Multi(80), policy, obs, eps, Generator().manual_seed(0))
    kept = torch.tensor([True, False, True, False])
    part = perturb(Multi(80), policy, obs, eps * kept, Generator().manual_seed(0))
    assert torch.allclose(part[kept], whole[kept], atol=1e-12)
    assert torch.equal(part[~kept], obs[~kept])
    assert torch.equal(perturb(MultiT(80), policy, obs, 0 * eps, Generator().manual_seed(0)), obs)


def test_cells_come_when_they_are_done(policy):
    cells = [Cell(None, 0.0), Cell(PGD(3, 1.0), 1.0)]
    lengths = [max(score.lengths) for score in play(policy, cells).values()]
    assert lengths == sorted(lengths)
    assert len({*lengths}) == 2


@dataclass  # not frozen: it cannot be a key
class OneBudget:
    """An attack of somebody else's, which knows one budget and PyTorch's generators."""

    calls: int = 0  # part of its repr, which changes as it is played

    def __call__(self, policy: Policy, obs: Tensor, eps: float, generator: Generator, /) -> Tensor:
        assert isinstance(eps, float)
        self.calls += 1
        return obs + eps * (2 * torch.rand(obs.shape, generator=generator) - 1)


def test_an_attack_of_ones_own_is_called_with_one_budget_and_one_generator(policy, tmp_path):
    attack = OneBudget()
    cells = [Cell(attack, 0.1), Cell(attack, 0.2)]
    plan = Plan(GAME, episodes=2)
    assert cells_at_once(policy, plan) > 1
    assert [score.eps for score in run_suite(policy, plan, cells, ScoresFolder(tmp_path))] == [0.1, 0.2]
    assert attack.calls > 0
