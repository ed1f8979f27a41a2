"""What the DQN learner does about an adversary: its attacks, bounds and losses by hand; half precision, step sizes."""

import copy
import dataclasses

import pytest
import torch

from bcl import device as machine
from bcl import losses
from bcl.attacks import PGD, RIFGSM, CrossEntropy, Margin, MixedPGD, TargetValue
from bcl.bounds import input_box, margins
from bcl.config import AttackConfig, DqnConfig, resolve_stages
from bcl.learners.dqn import DqnLearner, learning_rate
from bcl.learners.learner import Task, spread_budgets, training_attack
from bcl.learners.replay import Batch
from bcl.policies import Policy, PolicySpec


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def weights(module):
    return [parameter.detach().clone() for parameter in module.parameters()]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


# --- the adversary


def test_the_configured_attack_is_taken():
    values = TargetValue(torch.zeros(1, 2))
    assert training_attack(AttackConfig(), values) == RIFGSM(values)
    assert training_attack(AttackConfig(objective="cross-entropy"), values) == RIFGSM(CrossEntropy())
    config = AttackConfig(kind="pgd", steps=7, relative_step=0.3, random_start=True, objective="margin")
    assert training_attack(config, values) == PGD(7, 0.3, random_start=True, objective=Margin())
    assert training_attack(AttackConfig(kind="pgd"), values) == PGD(10, 0.2, objective=values)
    mixed = dataclasses.replace(config, large_steps=0.5)
    assert training_attack(mixed, values) == MixedPGD(7, 0.3, True, 0.5, Margin())


def test_the_papers_attack_by_hand(make, play):
    learner = make("at", start=0.1, end=0.1, num_envs=16, hidden=(16, 16), target_sync=1000)
    obs = play(learner, 10)  # the networks differ by now
    before, generator = weights(learner.policy), seeded()
    generator.set_state(learner.generators["attack"].get_state())
    seen = learner.attack(obs)
    assert same(before, weights(learner.policy))
    noise = torch.empty_like(obs).uniform_(-0.1, 0.1, generator=generator)
    point = (obs + noise).requires_grad_()
    with torch.no_grad():
        values = learner.target(obs)
    (gradient,) = torch.autograd.grad((learner.policy(point).softmax(dim=1) * values).sum(), point)
    assert (gradient != 0).float().mean() > 0.5
    expected = torch.where(gradient != 0, obs - 0.1 * gradient.sign(), obs - noise).clamp(0, 1)
    torch.testing.assert_close(seen, expected)


@pytest.mark.parametrize("kind", ["ri-fgsm", "pgd"])
def test_what_was_shown_is_kept_with_the_budget_of_its_time(make, play, kind):
    learner = make(
        "at",
        end=0.2,
        buffer_size=1000,
        ramp_steps=100,
        world={"image": True},
        attack=AttackConfig(kind=kind, steps=3, relative_step=0.5),
    )
    obs, budgets, shown = None, [], []
    attack = learner.attack
    learner.attack = lambda obs: shown.append(attack(obs)) or shown[-1]
    for _ in range(30):
        obs = play(learner, 1, obs)
        budgets.append(min(1, max(0, (learner.step - 4 - 16 + 1) / 100)) * 0.2)  # at the step before
        moved = (shown[-1] - learner._obs / 255).abs().max().item()
        assert moved == pytest.approx(budgets[-1], abs=1e-6)
        assert shown[-1].min() >= 0
        assert shown[-1].max() <= 1
    assert budgets[3] == 0
    assert budgets[-1] > 0.19
    kept = learner.replay.sample(60, seeded())
    index = (kept.seen.unsqueeze(1) - torch.cat(shown)).flatten(2).abs().amax(dim=2).min(dim=1)
    assert index.values.max() <= 0.2 / 127 + 1e-6  # each is one of those that were shown
    assert index.indices.unique().numel() > 20


def test_fresh_attacks_see_the_weights_of_now(make, play):
    learner = make("at", start=0.1, end=0.1, attack=AttackConfig(fresh=True), samples_per_step=2.0, hidden=(16, 16))
    stored = make("at")
    assert learner.replay.nbytes < stored.replay.nbytes  # no perturbation is kept
    obs, shown, perturbed = play(learner, 10), [], learner._attacked
    learner._attacked = lambda *given: shown.append((given[0], perturbed(*given))) or shown[-1][1]
    drawn, before = learner.generators["update"].get_state(), copy.deepcopy(learner.policy.state_dict())
    for sign in (1, -1):  # the same batch and noise, the same network and then its opposite
        learner.generators["update"].set_state(drawn)
        learner.policy.load_state_dict(before)
        with torch.no_grad():
            learner.policy.network.advantage[-1].weight.mul_(sign)
        learner.update()
    (first, seen), (second, seen_by_opposite) = shown
    assert learner.play(obs)[1] is None
    assert torch.equal(first, second)
    moved = (seen - first).abs() > 0
    assert (seen_by_opposite != seen)[moved].float().mean() > 0.5
    assert (seen - first).abs().max() <= 0.1 + 1e-6


# --- bounds


def intervals(layers, low, high, *, centred=False):
    """Interval bounds of linear layers and ReLUs by the signs of the weights; `centred`: less the mean of the
    outputs."""
    for layer in layers:
        if isinstance(layer, torch.nn.ReLU):
            low, high = low.clamp(min=0), high.clamp(min=0)
        elif isinstance(layer, torch.nn.Linear):
            weight, bias = layer.weight, layer.bias
            if centred and layer is layers[-1]:
                weight, bias = weight - weight.mean(dim=0), bias - bias.mean()
            up, down = weight.clamp(min=0), weight.clamp(max=0)
            low, high = low @ up.T + high @ down.T + bias, high @ up.T + low @ down.T + bias
    return low, high


@pytest.fixture
def bounded(make, play):
    """A learner with a few steps behind it and a budget of 0.1; observations lie on the edge of the valid box."""

    def build(loss="radial", **settings):
        learner = make(loss, start=0.1, end=0.1, hidden=(6, 8), **settings)
        play(learner, 10)
        return learner

    return build


@pytest.mark.parametrize("approach", ["1", "1-reference", "2"])
def test_radial_losses_by_hand(bounded, approach):
    learner = bounded(radial_approach=approach, kappa=0.7)
    batch, goal = learner.replay.sample(64, seeded()), torch.linspace(-1, 1, 64)
    loss, info = learner._loss(batch, goal)
    network = learner.policy.network
    low, high = (batch.obs - 0.1).clamp(0, 1), (batch.obs + 0.1).clamp(0, 1)
    body = intervals(network.cnn, low, high)
    low, high = intervals(network.advantage, *body, centred=True)
    q = learner.policy(batch.obs)
    if approach == "1":
        value = intervals(network.value, *body)
        low, high = low + value[0], high + value[1]
    elif approach == "1-reference":
        value = network.value(network.cnn(batch.obs)).detach()
        low, high = low + value, high + value
    robust = losses.radial_2 if approach == "2" else losses.radial_1
    expected, _ = robust(q, low, high, losses.Replayed(batch.actions, goal, batch.weights, "min"), 0.7)
    torch.testing.assert_close(loss, expected)
    assert loss.item() != pytest.approx(info["td"].item())
    given, by_hand = (torch.autograd.grad(x, list(learner.policy.parameters())) for x in (loss, expected))
    for one, other in zip(given, by_hand, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_adversarial_training_may_take_a_share_of_radials_bounds_at_a_budget_of_their_own(bounded, share):
    learner = bounded("at", bound_share=share, bound_eps=0.02, kappa=0.7)
    batch, goal = learner.replay.sample(64, seeded()), torch.linspace(-1, 1, 64)
    loss, info = learner._loss(batch, goal)
    past = losses.Replayed(batch.actions, goal, batch.weights, "min")
    q, q_seen = learner.policy(batch.obs), learner.policy(batch.seen)
    attacked, _ = losses.adversarial(q, q_seen, past, 0.7)
    network = learner.policy.network
    body = intervals(network.cnn, (batch.obs - 0.02).clamp(0, 1), (batch.obs + 0.02).clamp(0, 1))
    proven, about = losses.radial_2(q, *intervals(network.advantage, *body, centred=True), past, 0.7)
    torch.testing.assert_close(loss, (1 - share) * attacked + share * proven)
    torch.testing.assert_close(info["loss"], loss.detach())
    assert "fooled" in info
    assert info.get("certified") == (about["certified"] if share else None)


def conv_intervals(layer, low, high):
    """Of a convolution: the lower bound takes positive weights of the low ends, negative ones of the high ends."""
    up, down = layer.weight.clamp(min=0), layer.weight.clamp(max=0)

    def apply(weight, x):
        return torch.nn.functional.conv2d(x, weight, stride=layer.stride)

    bias = layer.bias.view(1, -1, 1, 1)
    return apply(up, low) + apply(down, high) + bias, apply(up, high) + apply(down, low) + bias


def test_radial_v1_bounds_its_plain_network_by_approach_1(chain):
    """RoadRunner's BCL rows start from radial_rl's first version: d_a = B_a - t, d_y = B_y - Q_y, each bound the
    further."""
    settings = resolve_stages("road_runner", recipe="bcl-mos-at")[1][1].dqn
    env, eps, kappa = chain(4, image=True), 1 / 255, 0.6
    policy = Policy(PolicySpec("plain-cnn", env.obs_shape, env.num_actions, env.low, env.high))
    config = dataclasses.replace(settings, buffer_size=64, num_envs=4, replay_initial=16, precision="fp32")
    learner = DqnLearner(policy, env, config, AttackConfig(), Task("radial", eps, eps, 0))
    learner._eps.fill_(eps)
    learner._kappa.fill_(kappa)
    draw = seeded()
    obs = torch.rand(6, *env.obs_shape, generator=draw)
    actions, goal = torch.tensor([0, 1, 1, 0, 1, 0]), torch.randn(6, generator=draw)
    batch = Batch(obs, obs, actions, goal, obs, torch.ones(6), weights=torch.full((6,), 1 / 6))
    low, high = (obs - eps).clamp(0, 1), (obs + eps).clamp(0, 1)
    for layer in policy.network.model:
        if isinstance(layer, torch.nn.Conv2d):
            low, high = conv_intervals(layer, low, high)
        elif isinstance(layer, torch.nn.Flatten):
            low, high = layer(low), layer(high)
        else:
            low, high = intervals([layer], low, high)
    q = policy(obs)
    total = torch.zeros(())
    for i in range(6):
        error = q[i, actions[i]] - goal[i]
        total = total + kappa * torch.minimum(error**2, error.abs()) / 6
        for y in range(2):
            centre = goal[i] if y == actions[i] else q[i, y]
            further = torch.maximum((high[i, y] - centre).abs(), (low[i, y] - centre).abs())
            total = total + (1 - kappa) * torch.minimum(further**2, further) / 6
    torch.testing.assert_close(learner._loss(batch, goal)[0], total)


def test_sa_mixes_its_bounds_along_the_ramp(bounded):
    learner = bounded("sa", kappa=0.6)
    learner.task = type(learner.task)("sa", 0.0, 0.4, 0)  # a quarter of the way at a budget of 0.1
    batch, goal = learner.replay.sample(64, seeded()), torch.linspace(-1, 1, 64)
    q = learner.policy(batch.obs)
    box = (batch.obs - 0.1).clamp(0, 1), (batch.obs + 0.1).clamp(0, 1)
    tight, loose = (margins(learner.policy.chain(), *box, q.argmax(dim=1), method) for method in ("crown-ibp", "ibp"))
    assert not torch.allclose(tight, loose)
    past = losses.Replayed(batch.actions, goal, batch.weights, "min")
    expected, _ = losses.sa(q, (3 * tight + loose) / 4, past, 0.6)
    torch.testing.assert_close(learner._loss(batch, goal)[0], expected)


def test_bounds_hold_and_the_references_need_not(bounded):
    learner = bounded()
    with torch.no_grad():
        learner.policy.network.value[-1].weight.mul_(20)  # a value that moves more than any advantage
    obs = torch.rand(50, 5, generator=seeded(1))
    box = input_box(obs, 0.1, learner.policy.low, learner.policy.high)
    points = box[0] + (box[1] - box[0]) * torch.rand(200, 50, 5, generator=seeded(2))
    with torch.no_grad():
        q, inside = learner.policy(obs), learner.policy(points.view(-1, 5)).view(200, 50, 2)
        broken = {}
        for approach in ("1", "1-reference"):
            learner.config = DqnConfig(radial_approach=approach)
            low, high = learner._q_bounds(*box, q)
            broken[approach] = ((inside < low - 1e-5) | (inside > high + 1e-5)).any().item()
            assert ((low - 1e-5 <= q) & (q <= high + 1e-5)).all()
    assert broken == {"1": False, "1-reference": True}


# --- precision


@pytest.mark.parametrize("image", [False, True])
@pytest.mark.parametrize("loss", ["standard", "radial", "at", "sa"])
def test_bf16_trains_much_like_fp32(make, play, loss, image):
    gradients = {}
    for precision in ("fp32", "bf16"):
        settings = {
            "precision": precision,
            "replay_initial": 32,
            "batch_size": 32,
            "num_envs": 8,
            "samples_per_step": 4,
        }
        learner = make(loss, start=0.02, end=0.02, hidden=(16, 16), world={"image": image}, **settings)
        play(learner, 5)
        gradients[precision] = torch.cat([parameter.grad.flatten() for parameter in learner.policy.parameters()])
        play(learner, 5)
        assert all(parameter.isfinite().all() for parameter in learner.policy.parameters())
    full, half = gradients["fp32"], gradients["bf16"]
    assert half.dtype == torch.float32
    assert not torch.equal(full, half)  # it was in use
    assert torch.cosine_similarity(full, half, dim=0) > 0.99
    assert half.norm() / full.norm() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("units", [False, True])
def test_automatic_precision_on_a_cpu_goes_by_its_units(make, play, monkeypatch, units):
    monkeypatch.setattr(machine, "cpu_has_bf16", lambda: units)
    chosen, other = ("bf16", "fp32") if units else ("fp32", "bf16")
    trained = {}
    for precision in ("auto", chosen, other):
        learner = make(precision=precision, world={"image": True})
        play(learner, 6)
        trained[precision] = weights(learner.policy)
    assert same(trained["auto"], trained[chosen])
    assert not same(trained["auto"], trained[other])


# --- step size


def test_step_sizes_by_hand():
    config = DqnConfig(steps=1000, batch_size=512, learning_rate=1e-3)
    assert learning_rate(config, 0) == learning_rate(config, 1000) == 1e-3
    for scaling, factor in (("sqrt", 2), ("linear", 4)):
        scaled = DqnConfig(**(vars(config) | {"learning_rate_scaling": scaling, "learning_rate_end": 0.2}))
        rates = [learning_rate(scaled, step) / 1e-3 / factor for step in (0, 500, 1000)]
        assert rates == pytest.approx([1, 0.6, 0.2])


def test_the_step_size_reaches_the_optimizer(make, play):
    moved = []
    for step in (0, 200):
        learner = make(batch_size=32, learning_rate=1e-3, learning_rate_scaling="linear", learning_rate_end=0.5,
                       replay_initial=64, samples_per_step=8.0)  # fmt: skip
        obs = play(learner, 16)
        before, learner.step = weights(learner.policy), step
        play(learner, 1, obs)
        pairs = zip(before, weights(learner.policy), strict=True)
        moved.append(max((old - new).abs().max().item() for old, new in pairs))  # Adam's first step is the step size
    assert moved == pytest.approx([0.25e-3, 0.25e-3 * 0.75], rel=1e-3)


# --- the adversary in play


def test_driven_copies_act_on_what_the_adversary_shows(make):
    attack = AttackConfig(in_play=0.5)
    greedy = {"exploration_start": 0.0, "exploration_end": 0.0}
    learner = make("at", start=0.5, end=0.5, num_envs=8, hidden=(16, 16), attack=attack, **greedy)
    fooled = 0
    obs = learner.restart()
    for _ in range(20):
        acting = copy.deepcopy(learner.player._policy)
        actions, seen = learner.play(obs)
        with torch.no_grad():
            clean, shown = (acting(x).argmax(dim=1) for x in (obs, seen))
        assert torch.equal(actions, torch.cat([shown[:4], clean[4:]]))
        fooled += int((shown != clean)[:4].sum())
        learner.update()
        obs = learner.store(obs, actions, seen)
    assert fooled > 0
    row = learner.metrics()
    assert row["episodes"] > 0
    assert "return_attacked" in row


def test_budgets_are_spread_over_the_copies(make, play):
    learner = make("at", start=0.4, end=0.4, num_envs=8, attack=AttackConfig(kind="corner-noise", spread=0.5))
    budgets = spread_budgets(torch.tensor(0.4), 8, 0.5)
    obs = play(learner, 3)
    _, seen = learner.play(obs)
    moved = (seen - obs).abs().amax(dim=1)
    assert budgets[0] == 0.4
    assert ((budgets > 0.2) & (budgets <= 0.4)).all()
    assert budgets[:4].max() - budgets[:4].min() > 0.1  # driven copies, the first ones, have large and small ones
    torch.testing.assert_close(moved[moved > 0], budgets[moved > 0])
    batch = learner.replay.sample(64, learner.generators["update"])
    replayed = (batch.seen - batch.obs).abs().amax(dim=1)
    replayed = replayed[replayed > 0]  # of some the box cuts off all elements
    distance, whose = (replayed[:, None] - budgets).abs().min(dim=1)
    assert distance.max() < 1e-6  # each with the budget it was made with
    assert len(whose.unique()) == 8


def test_without_a_spread_all_have_the_current_budget():
    assert spread_budgets(torch.tensor(0.3), 8, 0.0).shape == ()


@pytest.mark.parametrize("loss", ["radial", "sa"])
def test_other_losses_can_be_driven_too_but_keep_nothing_of_it(make, play, loss):
    learner = make(loss, start=0.1, end=0.1, attack=AttackConfig(in_play=1.0))
    obs = play(learner, 10)
    assert learner.play(obs)[1] is None
    assert learner.metrics()["return"] is None  # no copy plays undisturbed
    assert "return_attacked" not in make("standard", attack=AttackConfig(in_play=1.0)).metrics()
