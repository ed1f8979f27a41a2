"""The loop in the style of the public PPO computes what the library does, and runs."""

import importlib
from itertools import chain, islice, pairwise
from pathlib import Path

import pytest
import torch

from bcl import losses
from bcl.attacks import PGD, AwayFromActions, OwnValue
from bcl.attacks.objectives import ascent
from bcl.config import PpoConfig, resolve
from bcl.learners.ppo import ReturnScale
from bcl.policies import Policy, PolicySpec

RADIUS = 10.0  # of 255
ACTIONS = 15


def module_of(monkeypatch, name):
    """A script of benchmarks/; `python benchmarks/x.py` finds its neighbours in the same way."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    return importlib.import_module(name)


@pytest.fixture
def loop(monkeypatch):
    return module_of(monkeypatch, "reference_ppo")


@pytest.fixture
def network(loop):
    """With a head whose actions differ."""
    torch.manual_seed(0)
    network = loop.Network(ACTIONS)
    torch.nn.init.orthogonal_(network.layers[-1].weight)
    return network


@pytest.fixture
def policy(network):
    """The library's network with the same weights."""
    policy = Policy(PolicySpec("impala", (3, 64, 64), ACTIONS, (0.0,), (1.0,)))
    *body, weight, bias = network.parameters()
    parts = [*body, weight[:-1], bias[:-1], weight[-1:], bias[-1:]]
    with torch.no_grad():
        for ours, theirs in zip(policy.network.parameters(), parts, strict=True):
            ours.copy_(theirs)
    return policy


@pytest.fixture
def obs():
    draw = torch.Generator().manual_seed(1)
    return torch.randint(256, (6, 64, 64, 3), generator=draw).float()


def to_bcl(obs):
    return obs.permute(0, 3, 1, 2) / 255


@pytest.mark.parametrize("game", ["fruitbot", "jumper"])
@pytest.mark.parametrize("loss", ["standard", "at"])
def test_it_runs(loop, game, loss):
    pytest.importorskip("procgen")
    game = resolve(game).game
    assert loop.steps_per_second(game, loss, "cpu", RADIUS / 255, 0.0, num_envs=4, rollout=8, batch=16) > 0


def test_an_iteration_is_made_up_of_a_rollout_and_its_minibatches(loop, monkeypatch):
    """The rollout takes 1 s and what is computed from it 2 s; each of 3 * 16384 / 512 minibatches 0.5 s."""
    now, done = [0.0], []

    class Trainer:
        def __init__(self, *about):
            self.env = self

        def rollout(self, steps):
            now[0] += 1
            done.append(steps)

        def prepare(self):
            now[0] += 2

        def minibatches(self, size):
            assert size == 512
            while True:
                yield []

        def update(self, batch):
            now[0] += 0.5
            done.append("update")

        def close(self):
            done.append("closed")

    monkeypatch.setattr(loop, "Trainer", Trainer)
    monkeypatch.setattr(loop.time, "perf_counter", lambda: now[0])
    assert loop.steps_per_second(None, "at", "cpu", 0.1, 5.0) == pytest.approx(16384 / (1 + 2 + 96 * 0.5))
    assert done == [32, 256, *["update"] * (2 + 10), "closed"]
    done.clear()
    loop.steps_per_second(None, "at", "cpu", 0.1, 0.0)
    assert done.count("update") == 2 + 4


def test_the_network_is_the_papers_and_the_librarys(network, policy, obs):
    assert sum(weights.numel() for weights in network.parameters()) == 626_256
    logits, values = network(obs)
    expected = policy.network.logits_and_value(to_bcl(obs))
    torch.testing.assert_close((logits, values), expected)


@pytest.mark.parametrize("loss", ["standard", "at"])
def test_the_loss_is_the_librarys(loop, loss):
    draw = torch.Generator().manual_seed(0)
    logits, seen = torch.randn(2, 64, ACTIONS, generator=draw).requires_grad_()
    values, old, advantages, targets = torch.randn(4, 64, generator=draw)
    actions = torch.randint(ACTIONS, (64,), generator=draw)
    log_probs = torch.randn(64, ACTIONS, generator=draw).log_softmax(dim=1)[range(64), actions]
    past = {"action": actions, "log_prob": log_probs, "value": old, "advantage": advantages, "target": targets}
    found = loop.error(logits, values, seen if loss == "at" else None, past)

    config = PpoConfig()
    weights = losses.LossWeights(config.clip, config.value_coef, config.entropy_coef)
    same = losses.Past(actions, log_probs, old, advantages, targets, torch.full((64,), 1 / 64))
    if loss == "at":
        expected, _ = losses.ppo_adversarial(logits, values, seen, same, weights, config.kappa)
    else:
        expected, _ = losses.ppo(logits, values, same, weights)
    inputs = [logits, seen] if loss == "at" else [logits]
    torch.testing.assert_close(found, expected)
    for ours, theirs in zip(torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_pgd_is_the_librarys(loop, network, policy, obs):
    actions = torch.arange(6)
    found = loop.pgd(network, obs, actions, RADIUS)
    attack = PGD(steps=10, step=0.2, objective=AwayFromActions(actions))
    expected = attack(policy, to_bcl(obs), RADIUS / 255, torch.Generator())
    # A gradient near 0 may have either sign.
    assert ((to_bcl(found) - expected).abs() < 1e-5).float().mean() > 0.99
    assert (found - obs).abs().max() == RADIUS


def test_ri_fgsm_goes_where_the_librarys_objective_points(loop, network, policy, obs):
    torch.manual_seed(2)
    found = loop.ri_fgsm(network, obs, None, RADIUS)
    torch.manual_seed(2)
    start = obs + torch.empty_like(obs).uniform_(-RADIUS, RADIUS)
    _, _, direction = ascent(OwnValue(), policy, to_bcl(start), torch.empty(6, 0))
    expected = (to_bcl(obs) + RADIUS / 255 * direction.sign()).clamp(0, 1)
    assert ((to_bcl(found) - expected).abs() < 1e-5).float().mean() > 0.99


def test_rewards_are_scaled_as_the_librarys(loop):
    ours, theirs = loop.RewardScale(4), ReturnScale(4, 0.99, torch.device("cpu"))
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        rewards, over = torch.randn(4, generator=draw), torch.rand(4, generator=draw) < 0.2
        expected = theirs.scaled(rewards, over).clamp(-10, 10)
        torch.testing.assert_close(torch.from_numpy(ours(rewards.numpy(), over.numpy())).float(), expected)


def test_the_dataset_is_the_rollout_with_the_librarys_advantages(loop):
    pytest.importorskip("procgen")
    trainer = loop.Trainer(resolve("fruitbot").game, "at", "cpu", RADIUS / 255, num_envs=8)
    trainer.rollout(60)
    trainer.prepare()
    trainer.env.close()
    assert len(trainer.dataset) == 480
    assert len(trainer.segments) > 8, "no episode ended"
    advantages = []
    for segment in trainer.segments:
        assert all(t["goes_on"] for t in segment[:-1])
        assert all((a["next_obs"] == b["obs"]).all() for a, b in pairwise(segment))
        names = ("reward", "value", "next_value", "goes_on", "target")
        rewards, values, after, goes_on, targets = (torch.tensor([[t[name]] for t in segment]) for name in names)
        over = goes_on == 0
        advantages.append(losses.gae(rewards, values, after, over, over, 0.999, 0.95))
        torch.testing.assert_close(targets, advantages[-1] + values, check_dtype=False)
    expected = losses.standardised(torch.cat(advantages).flatten(), torch.full((480,), 1 / 480))
    found = torch.tensor([t["advantage"] for t in trainer.dataset])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, check_dtype=False)


@pytest.mark.parametrize(
    ("game", "loss", "passes"), [("fruitbot", "standard", 1), ("fruitbot", "at", 3), ("jumper", "at", 12)]
)
def test_an_update_costs_what_the_papers_does_and_learns(loop, game, loss, passes):
    """Forward passes: the clean one, one for each step of the attack, and one of what it found."""
    pytest.importorskip("procgen")
    trainer = loop.Trainer(resolve(game).game, loss, "cpu", RADIUS / 255, num_envs=4)
    trainer.rollout(8)
    trainer.prepare()
    trainer.env.close()
    kinds = []
    trainer.network.register_forward_hook(lambda module, args, out: kinds.append(args[0].dtype))
    assert trainer._radius == pytest.approx(RADIUS)
    before = [weights.detach().clone() for weights in trainer.network.parameters()]
    for weights in trainer.network.parameters():
        weights.grad = torch.full_like(weights, 1e6)  # of an update before, which does not count
    trainer.update(trainer.dataset)
    assert kinds == [torch.uint8, *[torch.float32] * (passes - 1)]
    gradients = [weights.grad for weights in trainer.network.parameters()]
    assert all(not torch.allclose(g, g.mean()) for g in gradients)
    assert torch.stack([g.norm() for g in gradients]).norm() <= 0.5 + 1e-4
    assert all((old != new).any() for old, new in zip(before, trainer.network.parameters(), strict=True))


def test_what_is_learned_from_is_what_the_network_said(loop, monkeypatch):
    """Of each observation and the one after it, in batches."""
    pytest.importorskip("procgen")
    monkeypatch.setattr(loop, "FORWARD", 16)
    trainer = loop.Trainer(resolve("fruitbot").game, "at", "cpu", RADIUS / 255, num_envs=4)
    torch.nn.init.orthogonal_(trainer.network.layers[-1].weight)
    trainer.rollout(8)
    sizes = []
    trainer.network.register_forward_hook(lambda module, args, out: sizes.append(len(args[0])))
    trainer.prepare()
    trainer.env.close()
    assert sizes == [16] * 4
    for name, of in (("value", "obs"), ("next_value", "next_obs")):
        images = torch.stack([torch.from_numpy(t[of]) for t in trainer.dataset])
        logits, values = trainer.network(images)
        torch.testing.assert_close(torch.tensor([t[name] for t in trainer.dataset]), values.detach())
        if of == "obs":
            actions = torch.tensor([int(t["action"]) for t in trainer.dataset])
            expected = logits.log_softmax(dim=1)[range(len(actions)), actions].detach()
            torch.testing.assert_close(torch.tensor([t["log_prob"] for t in trainer.dataset]), expected)


def test_minibatches_are_whole_and_pass_over_the_dataset_once_each(loop):
    pytest.importorskip("procgen")
    trainer = loop.Trainer(resolve("fruitbot").game, "at", "cpu", RADIUS / 255, num_envs=1)
    trainer.env.close()
    trainer.dataset = [{"number": i} for i in range(12)]
    numbers = [[t["number"] for t in batch] for batch in islice(trainer.minibatches(4), 6)]
    for epoch in (numbers[:3], numbers[3:]):
        assert sorted(chain(*epoch)) == list(range(12))
    assert numbers[:3] != numbers[3:]


@pytest.mark.parametrize(("samples", "ratio"), [(3.0, 10.0), (4.0, None)])
def test_no_ratio_where_steps_are_used_more_often(monkeypatch, samples, ratio):
    ppo = module_of(monkeypatch, "ppo")
    row = {"loss": "at", "steps_per_second": 100.0, "samples_per_step": samples}
    compared = ppo.compare(row, 1000.0, 10.0, "fruitbot", PpoConfig(num_envs=8), "cuda")
    assert (compared["reference_loop"], compared["times_reference_loop"]) == (10.0, ratio)
