"""Certificates along play: sound against attacks, and exact on a policy where the truth is known."""

import contextlib
import dataclasses
import importlib

import pytest
import torch

from bcl import zoo
from bcl.attacks import PGD, Ball, Square, perturb
from bcl.bounds import METHODS, Method, certified, input_box, margins
from bcl.config import resolve
from bcl.envs import make_env
from bcl.evaluation import Certificate, certify
from bcl.policies import Policy, PolicySpec
from bcl.policies.files import load

certify_module = importlib.import_module("bcl.evaluation.certify")  # the package has the function by this name
pytestmark = pytest.mark.usefixtures("short_games")


def pole_follower() -> Policy:
    """Pushes to the side the pole falls to: action 1 while angle + rate > 0. A good CartPole agent, linear by hand."""
    game = resolve("cartpole").game
    env = make_env(game, 1)
    policy = Policy(PolicySpec("plain-mlp", (4,), 2, env.low, env.high, (), game=game)).eval()
    with torch.no_grad():
        policy.network.model[1].weight.copy_(torch.tensor([[0.0, 0.0, -0.5, -0.5], [0.0, 0.0, 0.5, 0.5]]))
        policy.network.model[1].bias.zero_()
    return policy


@pytest.mark.parametrize("method", METHODS)
def test_certificates_of_a_linear_policy_are_exact(method: Method) -> None:
    policy, eps = pole_follower(), 0.05
    game = dataclasses.replace(resolve("cartpole").game)
    proof = certify(policy, make_env(game, 4), eps, method=method, seed=7)
    env = make_env(game, 4)
    obs, running = env.reset(7), torch.ones(4, dtype=torch.bool)
    states, safe = torch.zeros(4), torch.zeros(4)
    while running.any():
        lead = obs[:, 2] + obs[:, 3]
        states += running
        safe += running & (lead.abs() > 2 * eps)  # the adversary moves the sum by at most 2 eps
        env.send((lead > 0).long())
        step = env.recv()
        running &= ~step.ended
        obs = step.obs
    assert proof.acr_per_episode == pytest.approx((safe / states).tolist(), abs=2e-3)
    assert 0 < proof.acr < 1
    assert proof.nominal == states.mean().item()
    assert (proof.episodes, proof.seed) == (4, 7)  # one episode of each copy


def test_without_a_budget_everything_is_proven_and_gwc_is_nominal() -> None:
    policy = pole_follower()
    proof = certify(policy, make_env(resolve("cartpole").game, 3), 0.0)
    assert proof.acr > 0.99
    assert proof.gwc == proof.nominal
    wide = certify(policy, make_env(resolve("cartpole").game, 3), 1.0)
    assert wide.acr == 0
    assert wide.gwc < proof.nominal


def test_more_budget_never_proves_more() -> None:
    policy = pole_follower()
    env = make_env(resolve("cartpole").game, 3)
    rates = [certify(policy, env, eps).acr for eps in (0.01, 0.03, 0.1)]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("method", METHODS)
def test_attacks_never_change_a_certified_action(method: Method) -> None:
    torch.manual_seed(0)
    policy = Policy(PolicySpec("dueling-mlp", (4,), 3, (-3.0,) * 4, (3.0,) * 4, (32, 32))).eval()
    obs = torch.randn(500, 4).clamp(-3, 3)
    proven_any = 0
    for eps in (0.02, 0.1):
        with torch.no_grad():
            scores = policy(obs)
            actions = scores.argmax(1)
            lower, upper = input_box(obs, eps, policy.low, policy.high)
            proven = certified(margins(policy.chain(), lower, upper, actions, method), actions, scores)
        proven_any += int(proven.sum())
        for attack in (PGD(steps=20, step=0.2, random_start=True, restarts=3), Square(queries=200)):
            seen = perturb(attack, policy, obs, eps, torch.Generator().manual_seed(1))
            with torch.no_grad():
                assert (policy(seen).argmax(1) == actions)[proven].all()
    assert proven_any > 50


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [0.0, 300.0, 1e4, 1e6])
def test_a_large_value_stream_rounds_and_certifies_nothing_false(method: Method, value: float) -> None:
    torch.manual_seed(1)
    policy = Policy(PolicySpec("dueling-mlp", (4,), 3, (-3.0,) * 4, (3.0,) * 4, (32, 32))).eval()
    with torch.no_grad():
        policy.network.value[-1].bias.fill_(value)  # cancels in the margins, not in float32
        obs = torch.randn(2000, 4).clamp(-2.9, 2.9)
        scores = policy(obs)
        actions = scores.argmax(1)
        lower, upper = input_box(obs, 0.01, policy.low, policy.high)
        proven = certified(margins(policy.chain(), lower, upper, actions, method), actions, scores)
        for _ in range(50):
            seen = lower + (upper - lower) * torch.rand_like(obs)
            assert (policy(seen).argmax(1) == actions)[proven].all()
    assert proven.any() or value > 1e3


def test_attacks_and_certificates_speak_of_the_same_box() -> None:
    policy = Policy(PolicySpec("plain-mlp", (4,), 2, (-1.0,) * 4, (1.0,) * 4, (8,)))
    obs = torch.randn(200, 4) * 3  # environments do leave their own boxes
    for eps in (0.1, 0.7):
        ball = Ball.around(policy, obs, eps)
        lower, upper = input_box(obs, eps, policy.low, policy.high)
        torch.testing.assert_close(ball.lo, lower, atol=1e-6, rtol=0)
        torch.testing.assert_close(ball.hi, upper, atol=1e-6, rtol=0)
        assert (lower <= upper).all()


def test_people_are_shown_a_greedy_worst_case_of_at_most_nominal_play() -> None:
    proof = Certificate(0.1, "ibp", 0.5, (0.5,), -3.0, (-3.0,), -5.0, 1, 0)
    assert proof.at_worst == -5
    assert str(proof).endswith("GWC -5")


def test_states_that_copies_share_are_bounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    game = dataclasses.replace(resolve("pong").game, max_steps=12, first_noops=(3, 9, 3, 9, 9))
    policy = load(zoo.named("pong-distilled").file)
    rows: list[int] = []
    for name in ("margins", "pair_margins"):
        bound = getattr(certify_module, name)
        monkeypatch.setattr(
            certify_module,
            name,
            lambda chain, lower, *rest, bound=bound: (rows.append(len(lower)), bound(chain, lower, *rest))[1],
        )

    def proven() -> Certificate:
        with contextlib.closing(make_env(game, 5)) as env:
            return certify(policy, env, 1 / 255)

    once = proven()
    assert set(rows) <= {1, 2}, "of five copies two are different, or none before the game begins"
    rows.clear()
    monkeypatch.setattr(certify_module, "first_alike", lambda obs: torch.arange(len(obs)))
    assert proven() == once
    assert set(rows) == {5}
    assert once.acr > 0
