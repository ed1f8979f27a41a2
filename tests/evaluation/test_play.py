"""Scores on a toy game whose returns are known, then on real ones."""

import dataclasses
import math
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bcl.attacks import FGSM, PGD, Attack, CornerNoise, CrossEntropy, LowestScored, UniformNoise, perturb
from bcl.attacks.objectives import ascent
from bcl.bounds import Method
from bcl.config import resolve
from bcl.envs import Step, make_env
from bcl.errors import BclError
from bcl.evaluation import (
    Cell,
    Plan,
    Score,
    cells,
    evaluate,
    game_for_evaluation,
    run_certificates,
    run_suite,
    worst,
    worst_within,
)
from bcl.games import AtariGame, ProcgenGame
from bcl.policies import Policy, PolicySpec
from bcl.runs.results import Results, ScoresFolder


class Toy:
    """Copy i's episodes last i + 1 steps. Action 1 earns 1 in each step, action 0 nothing. Observation: (1, noise)."""

    game = resolve("cartpole").game
    num_actions = 2
    obs_shape = (2,)
    low, high = (-2.0, -2.0), (2.0, 2.0)

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs

    def reset(self, seed: int) -> Tensor:
        self._t = torch.zeros(self.num_envs, dtype=torch.long)
        return self._obs()

    def _obs(self) -> Tensor:
        return torch.tensor([[1.0, 0.5]]).repeat(self.num_envs, 1)

    def send(self, actions: Tensor) -> None:
        self._reward = actions.float()

    def recv(self) -> Step:
        self._t += 1
        over = self._t >= torch.arange(1, self.num_envs + 1)
        self._t[over] = 0
        nothing = torch.zeros_like(over)
        return Step(self._obs(), self._reward, over, nothing, ~nothing, self._obs()[over])

    def close(self) -> None:
        pass


def right_minded() -> Policy:
    """Scores (0, x0): plays action 1 while the first dimension is positive; a budget of 1 or more flips it."""
    policy = Policy(PolicySpec("plain-mlp", (2,), 2, (-2.0, -2.0), (2.0, 2.0), ()))
    with torch.no_grad():
        policy.network.model[1].weight.copy_(torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
        policy.network.model[1].bias.zero_()
    return policy.eval()


ATTACK = PGD(steps=5, step=0.5)


def test_every_copy_plays_its_share() -> None:
    score = evaluate(right_minded(), Toy(3), None, 0.0, episodes=7)
    assert score.returns == (1, 1, 1, 2, 2, 3, 3)  # copy by copy: 3, 2 and 2 episodes
    assert score.lengths == (1, 1, 1, 2, 2, 3, 3)
    assert score.protocol == "fixed"
    assert score.attack is None


def test_the_first_to_finish_favours_short_episodes_as_the_reference_does() -> None:
    score = evaluate(right_minded(), Toy(3), None, 0.0, episodes=7, protocol="first")
    # t=1: copy 0; t=2: 0, 1; t=3: 0, 2; t=4: 0, 1
    assert score.returns == (1, 1, 2, 1, 3, 1, 2)


def test_an_attack_counts_only_when_it_changes_the_action() -> None:
    weak = evaluate(right_minded(), Toy(2), ATTACK, 0.9, episodes=4)
    assert weak.returns == (1, 1, 2, 2)
    assert weak.changed == 0
    assert weak.max_perturbation == pytest.approx(0.9)
    strong = evaluate(right_minded(), Toy(2), ATTACK, 1.0, episodes=4)
    assert strong.returns == (0, 0, 0, 0)  # a tie at 0, which the first action wins


def test_a_sure_attack_takes_everything() -> None:
    policy = right_minded()
    with torch.no_grad():
        policy.network.model[1].bias[0] = 0.5  # action 1 while x0 > 0.5
    score = evaluate(policy, Toy(2), ATTACK, 0.6, episodes=4)
    assert score.returns == (0, 0, 0, 0)
    assert score.changed == 1
    assert score.zero_gradient == 0


def test_eps_zero_is_no_attack() -> None:
    score = evaluate(right_minded(), Toy(2), ATTACK, 0.0, episodes=2)
    assert score.attack is None
    assert score.max_perturbation == 0


def test_flat_policies_show_zero_gradients() -> None:
    policy = right_minded()
    with torch.no_grad():
        policy.network.model[1].weight.zero_()
    assert evaluate(policy, Toy(2), ATTACK, 0.5, episodes=2).zero_gradient == 1


def test_a_value_stream_does_not_hide_that_the_advantages_are_flat() -> None:
    torch.manual_seed(0)
    policy = Policy(PolicySpec("dueling-mlp", (2,), 2, (-2.0, -2.0), (2.0, 2.0), (8,))).eval()
    with torch.no_grad():
        for parameter in policy.network.advantage[0].parameters():
            parameter.zero_()
        policy.network.advantage[-1].bias.copy_(torch.tensor([0.0, 1.3]))
    obs = torch.randn(1, 2)
    residue = ascent(CrossEntropy(), policy, obs, policy(obs).detach())[2]
    assert 0 < residue.abs().max() < 1e-5  # what rounding leaves of the value
    assert evaluate(policy, Toy(2), ATTACK, 0.5, episodes=2).zero_gradient == 1


class Undecided(Policy):
    """A policy with chance inside."""

    def forward(self, obs: Tensor) -> Tensor:
        return super().forward(obs) + torch.randn(len(obs), 2)


def test_a_policy_that_changes_its_mind_is_noticed() -> None:
    sure = right_minded()
    undecided = Undecided(sure.spec)
    undecided.load_state_dict(sure.state_dict())
    score = evaluate(
        undecided, Toy(40), ATTACK, 0.5, episodes=40
    )  # nobody blames the certificates for what chance chose
    assert score.stochastic
    assert 0 < score.changed < 1
    assert not evaluate(sure, Toy(2), ATTACK, 0.5, episodes=2).stochastic


def test_layers_that_cannot_be_bounded_can_still_be_attacked() -> None:
    policy = right_minded()
    policy.network.model.insert(1, torch.nn.GELU())
    assert len(evaluate(policy, Toy(2), ATTACK, 0.5, episodes=2).returns) == 2


@dataclasses.dataclass(frozen=True)
class Cheat:
    """Claims a ball and leaves it; `perturb` must stop it."""

    def __call__(self, policy: object, obs: Tensor, eps: float, generator: torch.Generator) -> Tensor:
        return obs - 5


def test_no_attack_can_leave_its_budget() -> None:
    score = evaluate(right_minded(), Toy(1), Cheat(), 0.3, episodes=1)
    assert score.max_perturbation <= 0.3 + 1e-6


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (5.0, "this attack is broken"),
        (0.30001, "this attack is broken"),  # by far more than float32 rounds
        (float("nan"), "made NaN observations"),
    ],
)
def test_a_perturbation_over_budget_stops_everything(monkeypatch: pytest.MonkeyPatch, wrong: float, what: str) -> None:
    module = sys.modules["bcl.evaluation.play"]
    monkeypatch.setattr(module, "perturb", lambda attack, policy, obs, *_, **__: obs + wrong)
    with pytest.raises(BclError, match=what):
        evaluate(right_minded(), Toy(2), UniformNoise(), 0.3, episodes=2)


class Failing(Toy):
    """The second copy shows something infinite, or nothing at all, from its third step on."""

    wrong = float("nan")

    def recv(self) -> Step:
        step = super().recv()
        if self._t.max() >= 3:
            step.obs[1, 0] = self.wrong
        return step


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("attack", [None, ATTACK], ids=repr)
def test_observations_that_are_not_finite_are_refused_at_once_without_a_look_at_the_device(
    monkeypatch: pytest.MonkeyPatch, attack: PGD | None, wrong: float
) -> None:
    """As on a GPU, where attacks are not checked: each look would make the host wait."""
    module = sys.modules["bcl.evaluation.play"]
    monkeypatch.setattr(module, "perturb", lambda *inputs, check: perturb(*inputs, check=False))
    monkeypatch.setattr(Failing, "wrong", wrong)
    env = Failing(5)
    with pytest.raises(BclError, match="observation 1 of 5 has NaN or infinite elements"):
        evaluate(right_minded(), env, attack, 0.3 if attack else 0.0, episodes=5)
    assert env._t.max() == 3


def test_a_broken_certificate_stops_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = right_minded()
    with torch.no_grad():
        policy.network.model[1].bias[0] = 0.5
    module = sys.modules["bcl.evaluation.proofs"]
    monkeypatch.setattr(module, "certified", lambda margin, actions, scores: torch.ones(len(margin), dtype=torch.bool))
    with pytest.raises(BclError, match="certified"):
        evaluate(policy, Toy(2), ATTACK, 0.6, episodes=2)


def test_where_certificates_are_at_hand_every_step_is_held_against_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module, looks = sys.modules["bcl.evaluation.play"], list[str]()
    monkeypatch.setattr(module, "_refuse_broken_certificate", lambda *facts: looks.append(facts[-1]))
    policy, plan = cartpole_policy(), Plan(resolve("cartpole").game, episodes=2)
    [before] = run_suite(policy, plan, [Cell(ATTACK, 0.05)], Results(tmp_path / "without").scores)
    steps = max(before.lengths)
    assert looks == ["crown-ibp"] * math.ceil(steps / 32)
    proofs = [
        proof
        for method in ("crown", "ibp")
        for proof in run_certificates(policy, plan, [0.05], method, Results(tmp_path / "with").certificates)
    ]
    assert len(proofs) == 2
    looks.clear()
    assert [*run_suite(policy, plan, [Cell(ATTACK, 0.05)], Results(tmp_path / "with").scores)] == [before]
    assert looks.count("ibp") == steps
    assert looks.count("crown-ibp") == math.ceil(steps / 32)


@pytest.mark.parametrize(
    ("eps", "method"), [(0.02, "ibp"), (0.03, "ibp"), (0.04, "crown"), (0.05, "crown"), (0.06, None)]
)
def test_a_certificate_covers_attacks_at_smaller_budgets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, eps: float, method: Method | None
) -> None:
    module, looks = sys.modules["bcl.evaluation.play"], list[str]()
    monkeypatch.setattr(module, "_refuse_broken_certificate", lambda *facts: looks.append(facts[-1]))
    policy, plan = cartpole_policy(), Plan(resolve("cartpole").game, episodes=2)
    results = Results(tmp_path)
    proofs = [
        proof
        for budget, used in ((0.03, "ibp"), (0.03, "crown"), (0.05, "crown"))
        for proof in run_certificates(policy, plan, [budget], used, results.certificates)
    ]
    assert len(proofs) == 3
    [score] = run_suite(policy, plan, [Cell(ATTACK, eps)], results.scores)
    counts = {name: looks.count(name) for name in ("ibp", "crown")}
    assert counts == {name: max(score.lengths) if name == method else 0 for name in counts}


def test_no_episodes_are_refused() -> None:
    with pytest.raises(BclError, match="at least 1"):
        evaluate(right_minded(), Toy(1), None, 0.0, episodes=0)


def cartpole_policy() -> Policy:
    torch.manual_seed(0)
    game = resolve("cartpole").game
    env = make_env(game, 1)
    return Policy(PolicySpec("dueling-mlp", (4,), 2, env.low, env.high, (16, 16), game=game)).eval()


def test_the_same_seed_gives_the_same_score_and_scores_survive_json(tmp_path: Path) -> None:
    policy = cartpole_policy()
    plan = Plan(resolve("cartpole").game, episodes=5, seed=3)
    wanted = cells([ATTACK, UniformNoise()], [0.1, 0.2])
    once = list(run_suite(policy, plan, wanted, ScoresFolder(tmp_path / "a")))
    again = list(run_suite(policy, plan, wanted, ScoresFolder(tmp_path / "b")))
    assert once == again
    assert [Score.from_dict(s.to_dict()) for s in once] == once
    other = list(run_suite(policy, dataclasses.replace(plan, seed=4), wanted, ScoresFolder(tmp_path / "a")))
    assert once[0].returns != other[0].returns


def test_finished_cells_are_not_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = cartpole_policy()
    plan = Plan(resolve("cartpole").game, episodes=3)
    played: list[str] = []

    def spy(label: str):
        played.append(label)
        return lambda done, of: None

    first = cells([ATTACK], [0.1])
    list(run_suite(policy, plan, first, ScoresFolder(tmp_path), spy))
    assert played == ["nominal and 1 more"]
    more = cells([ATTACK], [0.1, 0.2])
    list(run_suite(policy, plan, more, ScoresFolder(tmp_path), spy))
    assert played[1:] == [Cell(ATTACK, 0.2).label]
    with torch.no_grad():
        policy.network.value[0].weight.add_(1)
    list(run_suite(policy, plan, first, ScoresFolder(tmp_path), spy))
    assert played[2:] == ["nominal and 1 more"]  # other weights are another policy


def test_the_floor_is_lower(tmp_path: Path) -> None:
    plan = Plan(Toy.game, episodes=3)
    [floor] = run_suite(cartpole_policy(), plan, [Cell(LowestScored(), 0.0)], ScoresFolder(tmp_path))
    assert [floor] == [*run_suite(cartpole_policy(), plan, [Cell(LowestScored(), 0.0)], ScoresFolder(tmp_path))]
    assert floor.mean < 15  # an agent that always plays its worse action falls at once; 500 is the best possible
    assert evaluate(right_minded(), Toy(2), LowestScored(), 0.0, episodes=2).returns == (0, 0)


A, B, C = FGSM(), UniformNoise(), CornerNoise()


def score(attack: Attack | None, eps: float, returns: tuple[float, ...], **more: object) -> Score:
    defaults = {
        "lengths": (1,) * len(returns),
        "changed": 0.5,
        "max_perturbation": eps,
        "zero_gradient": 0.0,
        "seed": 0,
    }
    return Score(**{"attack": attack, "eps": eps, "returns": returns, "protocol": "fixed", **defaults, **more})  # type: ignore[arg-type]


def test_worst_is_the_lowest_mean_and_the_minimum_per_episode() -> None:
    scores = [score(None, 0.0, (9, 9)), score(A, 0.1, (1, 5)), score(B, 0.1, (4, 1)), score(A, 0.2, (0, 0))]
    found = worst(scores)
    assert found.keys() == {0.1, 0.2}
    assert (found[0.1].attack, found[0.1].mean, found[0.1].episode_minimum) == (B, 2.5, 1.0)
    assert found[0.1].sem == pytest.approx(1.5 / 2**0.5)
    unpaired = worst([score(A, 0.1, (1, 5), protocol="first"), score(B, 0.1, (4, 1), protocol="first")])
    assert unpaired[0.1].episode_minimum is None


def test_episodes_are_paired_only_where_they_began_alike() -> None:
    alike, other = (
        [score(A, 0.1, (1, 5), prefixes=(3, 8)), score(B, 0.1, (4, 1), prefixes=p)] for p in ((3, 8), (3, 9))
    )
    assert worst(alike)[0.1].episode_minimum == 1.0
    assert worst(other)[0.1].episode_minimum is None
    assert worst([*alike[:1], score(B, 0.1, (4, 1))])[0.1].episode_minimum is None  # one began as the game has it


def test_worst_within_a_budget_counts_smaller_ones_and_doing_nothing() -> None:
    scores = [score(None, 0.0, (7, 7)), score(A, 0.1, (8, 9)), score(B, 0.2, (2, 4)), score(A, 0.3, (1, 9))]
    found = worst_within(scores)
    assert {eps: (one.attack, one.eps, one.mean) for eps, one in found.items()} == {
        0.1: (None, 0.0, 7),  # who may attack may also let it be
        0.2: (B, 0.2, 3),
        0.3: (B, 0.2, 3),  # A leaves 5 at 0.3
    }
    assert [one.episode_minimum for one in found.values()] == [7, 3, (1 + 4) / 2]
    assert found[0.3].sem == pytest.approx(1 / 2**0.5)
    assert {eps: one.mean for eps, one in worst(scores).items()} == {0.1: 8.5, 0.2: 3, 0.3: 5}  # the paper's
    assert worst_within([*scores, score(C, 0.3, (3, 3))])[0.3].eps == 0.3  # of equals the one that uses it all
    assert worst_within(scores[:1]) == {}


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(-10, 10)), min_size=1))
def test_worst_within_never_rises_with_the_budget(cells: list[tuple[int, float]]) -> None:
    scores = [score(A if level else None, level / 10, (mean,)) for level, mean in cells]
    found = [one.mean for one in worst_within(scores).values()]
    assert found == sorted(found, reverse=True)
    assert all(one.mean <= worst(scores)[eps].mean for eps, one in worst_within(scores).items())


def test_the_game_as_it_is_judged() -> None:
    pong, fruitbot = resolve("pong").game, resolve("fruitbot").game
    judged = game_for_evaluation(pong, None, 10_000)
    assert isinstance(judged, AtariGame)
    assert judged.max_steps == 10_000
    assert judged.first_noops == ()
    as_published = game_for_evaluation(pong, None, 10_000, starts=20)
    assert isinstance(as_published, AtariGame)
    assert as_published.first_noops[:3] == (17, 30, 5)
    assert len(as_published.first_noops) == 20
    unlimited = game_for_evaluation(fruitbot, "eval", 10_000)
    assert isinstance(unlimited, ProcgenGame)
    assert unlimited.num_levels == 0
    assert game_for_evaluation(fruitbot, "train", 10_000) == fruitbot
    with pytest.raises(BclError, match="no sets of levels"):
        game_for_evaluation(pong, "eval", 10_000)


def test_atari_play_under_attack_counts_no_start_up_moves() -> None:
    torch.manual_seed(0)
    game = dataclasses.replace(resolve("pong").game, max_steps=6)
    policy = Policy(PolicySpec("dueling-cnn", (1, 84, 84), 4, (0.0,), (1.0,), game=game)).eval()
    score = evaluate(policy, make_env(game, 2), PGD(steps=1, step=1.0), 1 / 255, episodes=4)
    assert score.lengths == (6, 6, 6, 6)
    assert 0 < score.max_perturbation <= 1 / 255 + 1e-6


@pytest.mark.parametrize(
    ("name", "levels", "start"), [("FruitBot_ppo.pt", 200, 24.0), ("FruitBot_radial_ppo.pt", 0, 19.0)]
)
def test_released_agents_play_well(released: Path, name: str, levels: int, start: float) -> None:
    """A quick form of the published cells; benchmarks/released.py plays all 1000 episodes."""
    from bcl.policies.importers import import_policy

    game = dataclasses.replace(resolve("fruitbot").game, num_levels=levels)
    policy = import_policy(released / name, "radial-ppo", game)
    score = evaluate(policy, make_env(game, 16), None, 0.0, episodes=16)
    assert score.mean > start  # random play gives about -2.5; the paper reports 26 to 30
