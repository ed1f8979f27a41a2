"""A whole evaluation: threads, environments and progress while it is played."""

import contextlib
import dataclasses
import operator
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import bcl
from bcl.attacks import PGD, RIFGSM, Learned, Multi, MultiT, Square, WorstAction
from bcl.config import resolve
from bcl.envs import make_env
from bcl.errors import ConfigError
from bcl.evaluation import Cell, Plan, cells, run_certificates, run_suite, suite
from bcl.policies import Policy, PolicySpec
from bcl.policies.files import save
from bcl.runs.results import CertificatesFolder, ScoresFolder

GAME = resolve("cartpole").game
PLAN = Plan(GAME, episodes=3)


@pytest.fixture
def policy() -> Policy:
    torch.manual_seed(0)
    with contextlib.closing(make_env(GAME, 1)) as env:
        return Policy(PolicySpec("dueling-mlp", (4,), 2, env.low, env.high, (8,), game=GAME)).eval()


def test_between_two_scores_the_caller_has_its_threads(policy: Policy, tmp_path: Path) -> None:
    torch.set_num_threads(2)
    played: set[int] = set()
    between: set[int] = set()
    progress = lambda label: lambda done, of: played.add(torch.get_num_threads())  # noqa: E731
    for _ in run_suite(policy, PLAN, cells([PGD(2, 0.5)], [0.1, 0.2]), ScoresFolder(tmp_path), progress):
        between.add(torch.get_num_threads())
    for _ in run_certificates(policy, PLAN, [0.01, 0.02], "ibp", CertificatesFolder(tmp_path), progress):
        between.add(torch.get_num_threads())
    assert (played, between, torch.get_num_threads()) == ({1}, {2}, 2)


@pytest.mark.parametrize("kind", ["suite", "certificates"])
def test_environments_are_closed_when_play_fails(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    closed = []

    class Failing:
        num_envs = 3

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("the game broke")

        def close(self) -> None:
            closed.append(kind)

    monkeypatch.setattr("bcl.evaluation.plan.make_env", lambda *_: Failing())
    work: dict[str, Callable[[], object]] = {
        "suite": lambda: [*run_suite(policy, PLAN, [Cell(None, 0.0)], ScoresFolder(tmp_path))],
        "certificates": lambda: [*run_certificates(policy, PLAN, [0.1], "ibp", CertificatesFolder(tmp_path))],
    }
    with pytest.raises(RuntimeError, match="the game broke"):
        work[kind]()
    assert closed == [kind]


def test_progress_is_of_the_whole_and_moves_with_every_step(policy: Policy, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    progress = lambda label: lambda done, of: told.append((label, done, of))  # noqa: E731
    wanted = cells([PGD(2, 0.5), PGD(8, 0.2)], [0.1, 0.2])
    scores = [*run_suite(policy, PLAN, wanted, ScoresFolder(tmp_path), progress)]
    assert len(told) >= max(max(score.lengths) for score in scores)  # every step, not every episode
    shares = [done / of for _, done, of in told]
    assert 0 < shares[0] < 0.5
    assert max(shares) <= 1
    assert shares == sorted(shares)
    told.clear()
    assert [*run_suite(policy, PLAN, wanted, ScoresFolder(tmp_path), progress)] == scores
    assert told == []  # all was read
    [*run_certificates(policy, PLAN, [0.01, 0.02], "ibp", CertificatesFolder(tmp_path), progress)]
    halves = [[done / of for label, done, of in told if label == f"ibp at {eps}"] for eps in (0.01, 0.02)]
    assert max(halves[0]) <= 0.5 <= min(halves[1]) <= max(halves[1]) == 1


def test_what_is_known_of_the_length_of_episodes_keeps_the_estimate_from_jumping(
    policy: Policy, tmp_path: Path
) -> None:
    told: list[float] = []
    progress = lambda label: lambda done, of: told.append(done / of)  # noqa: E731
    wanted = cells([PGD(2, 0.5), PGD(8, 0.2)], [0.1, 0.2])
    [*run_suite(policy, dataclasses.replace(PLAN, seed=1), wanted, ScoresFolder(tmp_path))]
    scores = [*run_suite(policy, PLAN, wanted, ScoresFolder(tmp_path), progress)]
    passes = [suite.network_passes(cell.attack) for cell in wanted]
    steps = [max(score.lengths) for score in scores]
    in_all = sum(map(operator.mul, passes, steps))
    for step, share in enumerate(told, 1):
        made = sum(cost * min(step, length) for cost, length in zip(passes, steps, strict=True))
        assert share == pytest.approx(made / in_all, rel=0.5), step


def test_a_cell_costs_what_its_attack_does_until_its_longest_episode_ends() -> None:
    told: list[tuple[int, int]] = []
    nominal, pgd, late = Cell(None, 0.0), Cell(PGD(10, 0.2), 0.1), Cell(PGD(10, 0.2), 0.2)
    progress = suite.SuiteProgress([nominal, pgd, late], PLAN, lambda label: lambda *work: told.append(work), {0.0: 50})
    step = progress.begin([nominal, pgd])
    step(10, 0)
    assert told[-1] == (10 * 11, 50 * 11 + 50 * 10)  # what is not known is as long as what is
    progress.end(nominal, SimpleNamespace(lengths=(7, 10)))
    step(20, 0)
    assert told[-1][0] == 10 * 11 + 10 * 10
    step(100, 0)
    done = 10 * 11 + 90 * 10
    # One plays longer than was known; what waits is as long as the longest known, not as what ended first.
    assert told[-1] == (done, done + 10 * 10 + 50 * 10)
    progress.end(pgd, SimpleNamespace(lengths=(100,)))
    progress.begin([late])(50, 0)
    assert told[-1][1] - told[-1][0] == 50 * 10


@dataclasses.dataclass(frozen=True)
class Push:
    """An attack of one's own: it cannot be compared with `==`, and its fields mean something else than ours."""

    direction: torch.Tensor
    steps: tuple[int, ...] = (2, 1)
    starts: str = "corners"

    def __call__(self, policy: Policy, obs: torch.Tensor, eps: float, generator: object) -> torch.Tensor:
        return obs + eps * self.direction


def test_attacks_of_ones_own_need_not_compare_nor_have_our_fields() -> None:
    away, none = Push(100 * torch.ones(4)), Push(torch.zeros(4))
    assert suite.network_passes(away) == 1
    wanted = [Cell(none, 0.9), Cell(away, 0.9)]
    progress = suite.SuiteProgress(wanted, PLAN, lambda label: lambda *work: None, {})
    progress.begin(wanted)
    progress.end(wanted[1], SimpleNamespace(lengths=(7,)))  # the later one first
    progress.end(wanted[0], SimpleNamespace(lengths=(9,)))


def test_a_number_of_copies_by_mistake_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"100,000,000,000 copies .* --num-envs, or fewer --episodes"):
        Plan(GAME, 3, num_envs=10**11)


def test_what_a_step_under_an_attack_costs() -> None:
    assert [suite.network_passes(a) for a in (None, PGD(30, 0.1), PGD(50, 0.1, True, 5), Multi(1000), Square(500))] == [
        1, 30, 250, 1000, 500,
    ]  # fmt: skip
    assert [suite.network_passes(Learned(found=found)) for found in (None, PGD(30, 0.1), WorstAction())] == [10, 30, 50]


def test_processes_that_share_the_work_find_what_one_does(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        save(policy, tmp_path / name / "p.safetensors")
    words: dict[str, Any] = {"eps": [0.1, 0.2], "episodes": 2, "device": "cpu"}
    one, two = (
        bcl.evaluate(tmp_path / name / "p.safetensors", attacks="pgd-2", parallel=n, **words)
        for n, name in enumerate(("one", "two"), 1)
    )
    assert one.scores == two.scores
    one_proven, two_proven = (
        bcl.certify(tmp_path / name / "p.safetensors", parallel=n, **words) for n, name in enumerate(("one", "two"), 1)
    )
    assert one_proven.certificates == two_proven.certificates
    assert not [*tmp_path.rglob("*progress.json")]
    monkeypatch.setattr("bcl.api.playing.Evaluator._in_processes", lambda *_: pytest.fail("all of it is stored"))
    file = tmp_path / "two" / "p.safetensors"
    assert bcl.evaluate(file, attacks="pgd-2", parallel=2, **words).scores == two.scores
    assert bcl.certify(file, parallel=2, **words).certificates == two_proven.certificates


def test_on_a_cpu_multi_and_multi_t_share_a_pass_at_each_budget(tmp_path: Path) -> None:
    plan = dataclasses.replace(PLAN, num_envs=2)
    conditions = plan.conditions("agent", "cpu")
    attacks = [PGD(2, 0.5), Multi(10), RIFGSM(), MultiT(10), Multi(20)]
    missing = {(conditions, cell.key): cell for cell in cells(attacks, [0.1, 0.2])}
    ordered = suite._in_order(missing)
    played = [[missing[address].label for address in addresses] for addresses in suite._passes(ordered, 1)]
    assert played == [
        ["nominal"],
        *(["PGD-2 at 0.1"], ["PGD-2 at 0.2"]),
        *(["Multi 10 at 0.1", "Multi-T 10 at 0.1"], ["Multi 10 at 0.2", "Multi-T 10 at 0.2"]),
        *(["RI-FGSM at 0.1"], ["RI-FGSM at 0.2"]),
        *(["Multi 20 at 0.1"], ["Multi 20 at 0.2"]),
    ]
    assert [len(addresses) for addresses in suite._passes(ordered, 4)] == [4, 4, 3]
    other = dataclasses.replace(
        conditions, plan=dataclasses.replace(plan, episodes=4)
    )  # such as Procgen's other levels
    two_games = {(of, key): cell for (_, key), cell in missing.items() for of in (conditions, other)}
    passes = suite._passes(suite._in_order(two_games), 1)
    assert [len(addresses) for addresses in passes] == [1, 1] + [1, 1] * 2 + [2] * 4 + [1] * 8
    assert all(len({of for of, _ in addresses}) == 1 for addresses in passes)


def test_a_pass_of_multi_and_multi_t_has_the_scores_of_each_alone(tmp_path: Path) -> None:
    game = dataclasses.replace(resolve("pong").game, max_steps=6)
    torch.manual_seed(0)
    policy = Policy(PolicySpec("dueling-cnn", (1, 84, 84), 4, (0.0,), (1.0,), game=game)).eval()
    plan = Plan(game, 2)
    wanted = [Cell(Multi(70), 5 / 255), Cell(MultiT(70), 5 / 255)]
    together = [*run_suite(policy, plan, wanted, ScoresFolder(tmp_path / "together"))]
    alone = [score for cell in wanted for score in run_suite(policy, plan, [cell], ScoresFolder(tmp_path / cell.label))]
    assert together == alone
    assert [score.max_perturbation for score in together] == pytest.approx([5 / 255] * 2)
