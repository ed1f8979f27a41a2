"""What the PPO learner does about an adversary: its attacks and bounds by hand."""

import typing

import pytest
import torch
from torch.nn import functional as F

from bcl.attacks import PGD, RIFGSM, AwayFromActions, CrossEntropy, Margin, OwnValue
from bcl.config import AttackConfig
from bcl.learners.learner import training_attack

KINDS = typing.get_args(typing.get_type_hints(AttackConfig)["kind"])
EPS = 0.1


def prepared(make_ppo, loss="at", **settings):
    """A learner whose batch is the first samples of a rollout, at a fixed budget; with the batch's observations."""
    learner = make_ppo(loss, start=EPS, end=EPS, hidden=(16, 16), batch_size=20, **settings)
    with torch.no_grad():  # fresh heads are nearly 0
        learner.policy.network.logits.weight.normal_(generator=torch.Generator().manual_seed(0))
    rollout, _ = learner.rollout(learner.restart())
    learner._order.copy_(torch.arange(40))
    learner._eps.fill_(EPS)
    obs = rollout.obs.flatten(0, 1)[:20]
    return learner, obs / 255 if obs.dtype == torch.uint8 else obs


# --- attacks


def test_the_papers_single_step_by_hand(make_ppo):
    learner, obs = prepared(make_ppo)
    generator = torch.Generator()
    generator.set_state(learner.generators["attack"].get_state())
    seen = learner._perturb_batch()
    noise = EPS * torch.empty_like(obs).uniform_(-1, 1, generator=generator)
    point = (obs + noise).requires_grad_()
    logits = learner.policy(point)
    (gradient,) = torch.autograd.grad((logits.softmax(dim=1) * logits).sum(), point)  # through both factors
    assert (gradient != 0).all()
    torch.testing.assert_close(seen, (obs - EPS * gradient.sign()).clamp(0, 1))


@pytest.mark.parametrize("objective", ["paper", "cross-entropy"])
def test_the_papers_ten_steps_by_hand(make_ppo, objective):
    learner, obs = prepared(make_ppo, attack=AttackConfig(kind="pgd", objective=objective))
    taken = learner._memory.actions.flatten()[:20]
    with torch.no_grad():
        best = learner.policy(obs).argmax(dim=1)
    assert (taken != best).any()  # actions are drawn
    labels = taken if objective == "paper" else best
    point = obs.clone()
    for _ in range(10):
        point.requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(learner.policy(point), labels), point)
        moved = point.detach() + 0.2 * EPS * gradient.sign()
        point = torch.clamp(moved, obs - EPS, obs + EPS).clamp(0, 1)
    torch.testing.assert_close(learner._perturb_batch(), point)


def test_the_configured_attack_is_taken():
    assert training_attack(AttackConfig(), OwnValue()) == RIFGSM(OwnValue())
    assert training_attack(AttackConfig(objective="margin"), OwnValue()) == RIFGSM(Margin())
    config = AttackConfig(kind="pgd", steps=4, relative_step=0.5, objective="cross-entropy")
    taken = AwayFromActions(torch.zeros(1))
    assert training_attack(config, OwnValue(), taken) == PGD(4, 0.5, objective=CrossEntropy())
    assert training_attack(AttackConfig(kind="pgd"), OwnValue(), taken) == PGD(10, 0.2, objective=taken)
    assert training_attack(AttackConfig(kind="pgd", objective="value"), OwnValue(), taken) == PGD(
        10, 0.2, objective=OwnValue()
    )


HUNDREDS_OF_PASSES = ("multi", "multi-t", "apgd", "square", "worst-action", "mad")  # too slow for images here
ON_IMAGES = [(kind, {"image": True}) for kind in KINDS if kind not in HUNDREDS_OF_PASSES]


@pytest.mark.parametrize(("kind", "world"), [*((kind, {}) for kind in KINDS), *ON_IMAGES])
def test_every_attack_keeps_ball_and_box(make_ppo, kind, world):
    learner, obs = prepared(make_ppo, attack=AttackConfig(kind=kind), world=world)
    seen = learner._perturb_batch()
    assert 0 < (seen - obs).abs().max() <= EPS + 1e-6
    assert seen.min() >= 0
    assert seen.max() <= 1
    assert not seen.requires_grad


def test_each_batch_is_attacked_anew_with_the_weights_of_now(make_ppo):
    learner, _ = prepared(make_ppo, epochs=2, learning_rate=0.05)
    shown, show = [], learner._show
    learner._show = lambda: shown.append((learner._order[learner._batch], show())) or shown[-1][1]
    learner.update(learner._memory)
    assert len(shown) == 4
    observed = learner._memory.obs.flatten(0, 1)
    moves = {}
    for index, seen in shown:
        for sample, move in zip(index.tolist(), seen - observed[index], strict=True):
            moves.setdefault(sample, []).append(move)
    assert all(len(found) == 2 for found in moves.values())
    assert any(not torch.equal(*found) for found in moves.values())


def test_the_adversary_attacks_the_weights_of_the_moment(make_ppo):
    learner, obs = prepared(make_ppo, epochs=1)
    before = learner.policy(obs).detach()
    learner.update(learner._memory)
    with torch.no_grad():
        assert not torch.equal(learner.policy(obs), before)
        assert torch.equal(learner._victim(obs), learner.policy(obs))
    assert not any(weight.requires_grad for weight in learner._victim.parameters())


def test_images_reach_the_network_with_their_channels_last(make_ppo):
    learner, _ = prepared(make_ppo, world={"image": True, "channels": 3}, epochs=1)
    seen = []
    for policy in (learner.policy, learner._victim):
        policy.network.body[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    learner.update(learner.rollout(learner.restart())[0])
    assert all(batch.is_contiguous(memory_format=torch.channels_last) for batch in seen)
    assert {len(batch) for batch in seen} == {4, 20, 40}  # acting; attacks; clean and attacked ones together


def what_the_loss_gets(learner):
    """The arguments of every call of the loss from here on."""
    given, objective = [], learner._objective
    learner._objective = lambda *args: given.append(args) or objective(*args)
    return given


def test_the_loss_sees_what_was_shown(make_ppo):
    learner, _ = prepared(make_ppo, epochs=1)
    given = what_the_loss_gets(learner)
    before = learner.policy.network
    expected, improve = [], learner._take_gradient_step

    def listen():
        with torch.no_grad():
            index = learner._order[learner._batch]
            clean = before.logits_and_value(learner._memory.obs.flatten(0, 1)[index])
            expected.append((*clean, before(learner._seen)))
        improve()

    learner._take_gradient_step = listen
    learner.update(learner._memory)
    for (logits, values, seen, *_, kappa), (clean, value, attacked) in zip(given, expected, strict=True):
        torch.testing.assert_close(logits, clean)
        torch.testing.assert_close(values, value)
        torch.testing.assert_close(seen, attacked)
        assert not torch.equal(seen, logits)
        assert kappa == 0.5


# --- bounds


def intervals(layers, low, high):
    """Bounds through linear layers and ReLUs by the signs of the weights."""
    for layer in layers:
        if isinstance(layer, torch.nn.Linear):
            up, down = layer.weight.clamp(min=0), layer.weight.clamp(max=0)
            low, high = low @ up.T + high @ down.T + layer.bias, high @ up.T + low @ down.T + layer.bias
        elif isinstance(layer, torch.nn.ReLU):
            low, high = low.relu(), high.relu()
    return low, high


def bounds_given(learner):
    given = what_the_loss_gets(learner)
    learner._take_gradient_step()
    (logits, _, lower, upper, *_) = given[0]
    return logits.detach(), lower.detach(), upper.detach()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_radial_bounds_the_logits_of_an_mlp(make_ppo, temperature):
    learner, obs = prepared(make_ppo, "radial", temperature=temperature)
    network = learner.policy.network
    with torch.no_grad():
        low, high = intervals([*network.body, network.logits], (obs - EPS).clamp(0, 1), (obs + EPS).clamp(0, 1))
    _, lower, upper = bounds_given(learner)
    torch.testing.assert_close(lower, low / temperature)  # of the policy that acts and learns
    torch.testing.assert_close(upper, high / temperature)


@pytest.mark.parametrize("eps", [0.0, 2 / 255])
def test_radial_bounds_the_logits_of_the_papers_network(make_ppo, eps):
    learner, obs = prepared(make_ppo, "radial", world={"image": True})
    learner._eps.fill_(eps)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        noisy = [obs + eps * (2 * torch.rand(obs.shape, generator=draw) - 1) for _ in range(5)]
        scores = torch.stack([learner.policy(x.clamp(0, 1)) for x in noisy])
    logits, lower, upper = bounds_given(learner)
    if eps:
        assert (lower < scores).all()
        assert (scores < upper).all()
    else:
        torch.testing.assert_close(lower, logits, rtol=0, atol=1e-4)
        torch.testing.assert_close(upper, logits, rtol=0, atol=1e-4)


# --- the adversary in play


@pytest.mark.parametrize("world", [{}, {"image": True}])
def test_driven_copies_act_on_what_the_adversary_shows(make_ppo, world):
    learner, _ = prepared(
        make_ppo, attack=AttackConfig(kind="pgd", steps=2, objective="margin"), in_play=0.5, world=world
    )
    steps, recv = [], learner.env.recv
    learner.env.recv = lambda: steps.append(recv()) or steps[-1]
    first = learner.restart()
    rollout, _ = learner.rollout(first)
    clean = torch.stack([first, *(step.obs for step in steps[:-1])])
    clean = clean / 255 if clean.dtype == torch.uint8 else clean
    moved = (rollout.obs - clean).abs().flatten(2).amax(dim=2)
    assert (moved[:, :2] > 0).float().mean() > 0.3  # of the others the box cuts off all elements
    assert moved.max().item() == pytest.approx(2 * 0.2 * EPS, abs=1e-6)
    assert (moved[:, 2:] == 0).all()
    seen = rollout.obs.flatten(0, 1)
    with torch.no_grad():
        log_probs = learner.policy(seen).log_softmax(dim=1).gather(1, rollout.actions.view(-1, 1))
    torch.testing.assert_close(rollout.log_probs.flatten(), log_probs.flatten())
    again = (learner._perturb_batch() - seen[:20]).abs().flatten(1).amax(dim=1).view(-1, 4)
    assert (again[:, :2] == 0).all()  # what they saw is attacked already
    assert (again[:, 2:] > 0).any()
    assert "return_attacked" in learner.metrics()


@pytest.mark.parametrize("loss", ["standard", "radial"])
def test_without_an_attack_in_the_loss_no_copy_is_driven(make_ppo, loss):
    learner = make_ppo(loss, start=EPS, end=EPS, in_play=1.0)
    first = learner.restart()
    rollout, _ = learner.rollout(first)
    assert torch.equal(rollout.obs[0], first)
    assert "return_attacked" not in learner.metrics()
