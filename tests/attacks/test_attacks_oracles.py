"""Attacks against independent implementations, closed forms and exhaustive search."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from bcl.attacks import (
    APGD,
    FGSM,
    KL,
    PGD,
    RIFGSM,
    CornerNoise,
    CrossEntropy,
    Margin,
    MixedPGD,
    Multi,
    MultiT,
    Square,
    TargetValue,
    UniformNoise,
    WorstAction,
    perturb,
)
from bcl.attacks.pgd import checkpoints
from bcl.attacks.ri_fgsm import DRAW

FREE = {"low": -float("inf"), "high": float("inf")}


def numpy_mlp(policy):
    """Scores and the input gradient of the cross-entropy, by hand, for one observation."""
    w1, b1, w2, b2 = (parameter.detach().numpy() for parameter in policy.parameters())

    def scores(x):
        return w2 @ np.maximum(w1 @ x + b1, 0) + b2

    def cross_entropy(x, label):
        z = scores(x)
        return np.log(np.exp(z - z.max()).sum()) + z.max() - z[label]

    def gradient(x, label):
        z = scores(x)
        p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        p[label] -= 1
        return w1.T @ ((w2.T @ p) * (w1 @ x + b1 > 0))

    return scores, cross_entropy, gradient


def kinked(policy):
    """All kinks meet in the middle of the box, so that gradients change inside the ball."""
    with torch.no_grad():
        policy.network[1].bias.copy_(-policy.network[1].weight.sum(dim=1) / 2)
    return policy.double()


def numpy_pgd(gradient, s, label, eps, steps, step, start):
    lo, hi = np.maximum(0, s - eps), np.minimum(1, s + eps)
    x = np.clip(start, lo, hi)
    for _ in range(steps):
        x = np.clip(x + step * eps * np.sign(gradient(x, label)), lo, hi)
    return x


def uniform64(shape, eps, generator):
    return (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1) * eps


@pytest.mark.parametrize("eps", [3 / 255, 0.3])
def test_pgd_30_is_the_reference_loop(mlp, seeded, eps):
    policy = mlp(seed=1, actions=4, inputs=10).double()
    obs = torch.rand(8, 10, generator=seeded(0), dtype=torch.float64)
    found = perturb(PGD(steps=30, step=0.1), policy, obs, eps, seeded(0)).numpy()
    scores, _, gradient = numpy_mlp(policy)
    for x, s in zip(found, obs.numpy(), strict=True):
        np.testing.assert_allclose(x, numpy_pgd(gradient, s, scores(s).argmax(), eps, 30, 0.1, s), atol=1e-12)


@pytest.mark.parametrize("random_start", [False, True])
def test_mixed_pgd_takes_large_steps_from_random_points_on_a_share_and_pgds_on_the_others(mlp, seeded, random_start):
    policy, eps = mlp(seed=3), 0.1
    obs = torch.rand(200, 6, generator=seeded(0))
    found = perturb(MixedPGD(5, 0.2, random_start, large_steps=0.25), policy, obs, eps, seeded(1))
    small, large = (perturb(PGD(5, step, random_start=True), policy, obs, eps, seeded(1)) for step in (0.2, 1.0))
    small = small if random_start else perturb(PGD(5, 0.2), policy, obs, eps, seeded(1))
    as_small, as_large = ((found - one).abs().amax(dim=1) < 1e-6 for one in (small, large))
    assert (as_small | as_large).all()
    assert not (as_small & as_large).all(), "the two differ"
    assert (as_large & ~as_small).sum() <= 0.25 * len(obs) + 1
    assert (~as_large).sum() <= 0.75 * len(obs) + 1


def test_restarts_keep_a_flip_first_and_then_the_highest_value(mlp, seeded):
    policy = mlp(seed=3, actions=12, inputs=10, scale=2.0).double()  # of many actions a flip may have a low value
    obs = torch.rand(60, 10, generator=seeded(0), dtype=torch.float64)
    eps, restarts = 0.15, 6
    attack = PGD(steps=3, step=0.3, random_start=True, restarts=restarts)
    found = perturb(attack, policy, obs, eps, seeded(5)).numpy()
    starts = uniform64((restarts * 60, 10), eps, seeded(5)).view(restarts, 60, 10).numpy()
    scores, cross_entropy, gradient = numpy_mlp(policy)
    decided = 0
    for b, s in enumerate(obs.numpy()):
        label = scores(s).argmax()
        ends = [numpy_pgd(gradient, s, label, eps, 3, 0.3, s + start) for start in starts[:, b]]
        best = max(ends, key=lambda x: (scores(x).argmax() != label, cross_entropy(x, label)))
        np.testing.assert_allclose(found[b], best, atol=1e-12)
        decided += best is not max(ends, key=lambda x: cross_entropy(x, label))
    assert decided >= 3, "a flip of a lower value than another restart's"


@pytest.mark.parametrize("eps", [3 / 255, 0.15])
def test_ri_fgsm_is_a_full_step_along_the_gradient_at_a_random_point(mlp, seeded, eps):
    policy = mlp(seed=3, actions=4, inputs=10).double()
    with torch.no_grad():
        policy.network[1].weight[:, :2] = 0  # the policy cannot see the first two elements
    obs = torch.rand(8, 10, generator=seeded(0), dtype=torch.float64)
    found = perturb(RIFGSM(), policy, obs, eps, seeded(7)).numpy()
    noise = uniform64(obs.shape, eps, seeded(7)).numpy()
    scores, _, gradient = numpy_mlp(policy)
    for x, s, d0 in zip(found, obs.numpy(), noise, strict=True):
        delta = eps * np.sign(gradient(s + d0, scores(s).argmax()))
        delta[:2] = -d0[:2]
        np.testing.assert_allclose(x, np.clip(s + delta, 0, 1), atol=1e-12)


def test_ri_fgsm_steps_less_than_the_ball_above_its_saturation(mlp, seeded):
    policy = mlp(seed=3, inputs=10, **FREE).double()
    obs = torch.rand(8, 10, generator=seeded(0), dtype=torch.float64)
    moved = (perturb(RIFGSM(), policy, obs, 0.9, seeded(7)) - obs).abs()
    noise = uniform64(obs.shape, 0.9, seeded(7))
    closest = torch.minimum((moved - (noise + 0.375).abs()).abs(), (moved - (noise - 0.375).abs()).abs())
    assert ((closest < 1e-12) | (moved > 0.9 - 1e-12)).all()


def test_the_training_attack_descends_the_target_value(mlp, seeded):
    policy, target = mlp(seed=4).double(), mlp(seed=5).double()
    obs = torch.rand(6, 6, generator=seeded(0), dtype=torch.float64)
    values = target(obs).detach()
    found = perturb(RIFGSM(objective=TargetValue(values)), policy, obs, 0.1, seeded(1))
    at = (obs + uniform64(obs.shape, 0.1, seeded(1))).requires_grad_()
    (gradient,) = torch.autograd.grad((policy(at).softmax(dim=1) * values).sum(), at)
    torch.testing.assert_close(found, (obs - 0.1 * gradient.sign()).clamp(0, 1))


def numpy_candidates(policy, obs, eps, starts, generator):
    """Every RI-FGSM candidate of every sample, one at a time, with the action it reaches."""
    scores, _, gradient = numpy_mlp(policy)
    noise = uniform64((starts, *obs.shape[1:]), eps, generator).numpy()  # all samples have the same starts
    for s in obs.numpy():
        label = scores(s).argmax()
        images = [np.clip(s + eps * np.sign(gradient(s + d0, label)), 0, 1) for d0 in noise]
        yield scores(s), images, [scores(x).argmax() for x in images]


def test_multi_and_multi_t_are_the_slow_scan(mlp, seeded):
    policy = kinked(mlp(seed=6, actions=5, inputs=10))
    obs = (2 * torch.rand(100, 10, generator=seeded(0), dtype=torch.float64) - 0.5).clamp(0, 1)  # clipping matters
    eps, starts = 0.18, 20
    multi = perturb(Multi(starts=starts, chunk=64), policy, obs, eps, seeded(1)).numpy()
    multi_t = perturb(MultiT(starts=starts, chunk=64), policy, obs, eps, seeded(1)).numpy()
    outcomes = Counter()
    for b, (clean, images, reached) in enumerate(numpy_candidates(policy, obs, eps, starts, seeded(1))):
        first = next((i for i, action in enumerate(reached) if action != clean.argmax()), 0)
        np.testing.assert_allclose(multi[b], images[first], atol=1e-12)
        lowest = min(set(reached), key=lambda action: clean[action])
        np.testing.assert_allclose(multi_t[b], images[reached.index(lowest)], atol=1e-12)
        assert clean[lowest] <= clean[reached[first]]
        outcomes[first > 0, len(set(reached))] += 1
    assert len(outcomes) == 5  # several actions reached, the first start failing or not: no trivial case


@pytest.mark.parametrize("attack", [Multi, MultiT])
@pytest.mark.parametrize("chunk", [1, 300, 600, 10_000])
def test_chunks_bound_memory_and_nothing_else(cnn, seeded, attack, chunk):
    policy = cnn(seed=1, actions=4).double()
    obs = torch.rand(4, 1, 12, 12, generator=seeded(0), dtype=torch.float64)
    sizes = []
    policy.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    found = perturb(attack(starts=150, chunk=chunk), policy, obs, 0.05, seeded(1))
    assert max(sizes) <= max(chunk, DRAW * len(obs))
    torch.testing.assert_close(found, perturb(attack(starts=150), policy, obs, 0.05, seeded(1)), rtol=0, atol=0)


@pytest.mark.parametrize("attack", [Multi, MultiT])
def test_what_no_later_start_can_change_is_left_alone(cnn, seeded, attack):
    policy = cnn(seed=2, actions=3).double()
    obs = torch.rand(6, 1, 12, 12, generator=seeded(0), dtype=torch.float64)
    eps = torch.tensor([0.0, 0.01, 0.05, 0.1, 0.3, 1.0], dtype=torch.float64)
    sizes = []
    policy.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))

    def scan(leaves):
        sizes.clear()
        generator = seeded(1)
        found = perturb(attack(starts=3 * DRAW + 5, leaves_settled=leaves), policy, obs, eps, generator)
        return found, generator.get_state(), sum(sizes)

    (all_of_them, state, many), (left, state_left, few) = scan(False), scan(True)
    torch.testing.assert_close(left, all_of_them, rtol=0, atol=0)
    assert torch.equal(state, state_left), "what is drawn next must not depend on it"
    assert few < many
    settled = policy(left).argmax(dim=1) != policy(obs).argmax(dim=1)
    assert 0 < settled.sum() < len(obs), "a case of each kind"


def test_fgsm_is_optimal_on_linear_policies(linear, seeded):
    weights = torch.randn(2, 12, generator=seeded(0), dtype=torch.float64)
    policy = linear(weights, **FREE)
    obs = torch.rand(30, 12, generator=seeded(1), dtype=torch.float64)
    clean = policy(obs)
    for attack in (FGSM(), FGSM(objective=Margin()), PGD(steps=30, step=0.1), RIFGSM(), APGD(steps=30)):
        found = perturb(attack, policy, obs, 0.1, seeded(2))
        gain = Margin()(policy(found), clean) - Margin()(clean, clean)
        torch.testing.assert_close(gain, (0.1 * (weights[0] - weights[1]).abs().sum()).expand(30))


def test_worst_action_finds_what_the_corners_of_a_linear_policy_allow(linear, seeded):
    weights = torch.randn(2, 6, generator=seeded(0), dtype=torch.float64)
    policy = linear(weights, bias=-weights.sum(dim=1) / 2)  # both actions are equally likely
    obs = torch.rand(40, 6, generator=seeded(1), dtype=torch.float64)
    found = perturb(WorstAction(), policy, obs, 0.1, seeded(2))
    corners = torch.tensor(list(product([-0.1, 0.1], repeat=6)), dtype=torch.float64)
    flipped = 0
    for s, x in zip(obs, found, strict=True):
        reachable = policy((s + corners).clamp(0, 1)).argmax(dim=1).unique()
        worst = min(reachable.tolist(), key=lambda action: float(policy(s[None])[0, action]))
        assert policy(x[None]).argmax() == worst
        flipped += len(reachable) > 1
    assert 5 < flipped < 35


def test_worst_action_finds_what_a_linear_program_proves_reachable(linear, seeded):
    weights = 3 * torch.randn(4, 8, generator=seeded(3), dtype=torch.float64)
    policy, eps = linear(weights), 0.15
    obs = torch.rand(25, 8, generator=seeded(4), dtype=torch.float64)
    found = policy(perturb(WorstAction(steps=200, step=0.02), policy, obs, eps, seeded(5))).argmax(dim=1)
    for s, action in zip(obs.numpy(), found.tolist(), strict=True):
        box = list(zip(np.maximum(0, s - eps), np.minimum(1, s + eps), strict=True))
        clean = weights.numpy() @ s
        leads = [best_lead(weights.numpy(), target, box) for target in range(4)]
        assert leads[action] > 0
        assert all(clean[action] <= clean[target] for target in range(4) if leads[target] > 0.05)


def best_lead(weights, target, box):
    """The largest lead of `target` over all other actions inside a box: max t with z_target - z_y >= t."""
    others = np.delete(weights, target, axis=0) - weights[target]
    program = linprog(
        c=[*np.zeros(len(box)), -1], A_ub=np.c_[others, np.ones(len(others))], b_ub=np.zeros(len(others)),
        bounds=[*box, (None, None)],
    )  # fmt: skip
    return -program.fun


@pytest.mark.parametrize("objective", [CrossEntropy(), Margin()], ids=repr)
def test_apgd_climbs_at_least_as_high_as_pgd(cnn, seeded, objective):
    obs = torch.rand(32, 1, 12, 12, generator=seeded(0))
    gains = []
    for seed in range(4):
        policy = cnn(seed=seed, actions=4, scale=8.0)
        clean = policy(obs).detach()
        pgd, apgd = (
            objective(policy(perturb(attack, policy, obs, 0.1, seeded(1))), clean).mean().item()
            for attack in (PGD(steps=40, step=0.1, random_start=True, objective=objective), APGD(40, objective))
        )
        gains.append(apgd - pgd)
    assert sum(gains) > 0


def numpy_apgd(value, gradient, s, eps, steps, start, halves_again=False):
    """Algorithm 1 of Croce and Hein, one observation at a time; `value` orders flips before the objective.

    `halves_again`: unlike theirs, where nothing better was found just after a halving too.
    """
    lo, hi = np.maximum(0, s - eps), np.minimum(1, s + eps)
    xs = [np.clip(start, lo, hi)]
    best, eta, halved, since, best_then = xs[0], 2 * eps, False, 0, value(xs[0])
    rises = []
    for k in range(steps):
        target = np.clip(xs[-1] + eta * np.sign(gradient(xs[-1])), lo, hi)
        drift = xs[-1] - xs[-2] if k else 0
        x = target if k == 0 else np.clip(xs[-1] + 0.75 * (target - xs[-1]) + 0.25 * drift, lo, hi)
        rises.append(value(x)[1] > value(xs[-1])[1])
        best = max(best, x, key=value)
        xs.append(x)
        if k + 1 in checkpoints(steps):
            few = sum(rises[since:]) < 0.75 * (k + 1 - since)
            stuck = (halves_again or not halved) and value(best) == best_then
            halved, since, best_then = few or stuck, k + 1, value(best)
            if halved:
                eta /= 2
                xs = [xs[-2], best]
    return best


@pytest.mark.parametrize(
    ("fastest", "eps", "steps", "count", "decided"), [(60, 0.1, 200, 60, 0), (300, 0.3, 20, 200, 3)]
)
def test_apgd_is_the_papers_algorithm(linear, seeded, fastest, eps, steps, count, decided):
    """On scores (0, sum of sines) the best observation lies inside the ball, so that step sizes matter."""
    phase = 6 * torch.rand(10, generator=seeded(2), dtype=torch.float64)
    speed = fastest * torch.logspace(-1, 0, 10, dtype=torch.float64)
    policy = linear(speed.diag(), phase, then=lambda z: torch.stack([0 * z.sum(dim=1), z.sin().sum(dim=1)], dim=1))
    obs = torch.rand(count, 10, generator=seeded(0), dtype=torch.float64)
    found = perturb(APGD(steps=steps, objective=Margin()), policy, obs, eps, seeded(1)).numpy()
    starts = (obs + uniform64(obs.shape, eps, seeded(1))).numpy()
    speed, phase = speed.numpy(), phase.numpy()
    others = 0
    for x, s, start in zip(found, obs.numpy(), starts, strict=True):
        side = 1 if np.sin(speed * s + phase).sum() <= 0 else -1

        def value(y, side=side):
            margin = side * np.sin(speed * y + phase).sum()
            return margin > 0, margin

        def gradient(y, side=side):
            return side * speed * np.cos(speed * y + phase)

        expected, other = (numpy_apgd(value, gradient, s, eps, steps, start, again) for again in (False, True))
        np.testing.assert_allclose(x, expected, atol=1e-9)
        others += np.abs(other - expected).max() > 1e-3
    assert others >= decided, "what halving twice in a row would find instead"


def test_apgd_checkpoints_are_the_papers():
    assert list(checkpoints(100)) == [22, 41, 57, 70, 80, 87, 93, 99]
    assert sum(checkpoints(100).values()) == 99
    assert checkpoints(1) == {1: 1}


def test_mad_moves_the_policy_further_than_noise_does(mlp, seeded):
    policy = mlp(seed=8, actions=4)
    obs = torch.rand(64, 6, generator=seeded(0))
    mad = PGD(steps=20, step=0.1, random_start=True, objective=KL())
    moved = [
        KL()(policy(perturb(attack, policy, obs, 0.1, seeded(1))), policy(obs)).mean()
        for attack in (mad, UniformNoise(), CornerNoise())
    ]
    assert moved[0] > 2 * max(moved[1:])
    stuck = perturb(PGD(steps=1, step=1.0, objective=KL()), policy, obs, 0.1, seeded(1))
    assert KL()(policy(stuck), policy(obs)).mean() < moved[0]


@pytest.mark.parametrize("shape", [(1, 6, 6), (3, 6, 6), (36,)], ids=str)
def test_square_finds_the_flips_of_a_linear_policy(linear, seeded, shape):
    inputs = int(np.prod(shape))
    weights = torch.randn(2, inputs, generator=seeded(0), dtype=torch.float64)
    policy = linear(weights, bias=-weights.sum(dim=1) / 2, **FREE)
    obs = torch.rand(32, *shape, generator=seeded(1), dtype=torch.float64)
    clean, reach = policy(obs), 0.1 * (weights[0] - weights[1]).abs().sum()
    flipped = Margin()(policy(perturb(Square(queries=1500), policy, obs, 0.1, seeded(2))), clean) > 0
    possible = -Margin()(clean, clean)
    assert flipped[possible < 0.9 * reach].all()
    assert not flipped[possible > reach].any()
    assert (possible < 0.9 * reach).sum() > 8


def test_rounded_scores_stop_gradients_but_not_search(linear, seeded):
    """Gradient masking: PGD does not move at all, and looks like robustness."""
    weights = torch.randn(3, 16, generator=seeded(0))
    policy = linear(weights, then=lambda scores: (scores * 8).round())
    obs = torch.rand(64, 1, 4, 4, generator=seeded(1))
    actions = policy(obs).argmax(dim=1)
    rate = {
        attack: float((policy(perturb(attack, policy, obs, 0.1, seeded(2))).argmax(dim=1) != actions).float().mean())
        for attack in (PGD(steps=30, step=0.1), Multi(starts=100), Square(queries=300))
    }
    pgd, multi, square = rate.values()
    assert pgd == 0
    assert multi > 0.1
    assert square > 0.2


def test_saturated_cross_entropy_stops_but_margin_does_not(linear, seeded):
    """Large score gaps underflow softmax: the clean action gets probability 1 and no gradient."""
    policy = linear(1e4 * torch.randn(3, 16, generator=seeded(0)))
    obs = torch.rand(64, 16, generator=seeded(1))
    actions = policy(obs).argmax(dim=1)
    found = [
        perturb(PGD(steps=30, step=0.1, objective=objective), policy, obs, 0.1, seeded(2))
        for objective in (CrossEntropy(), Margin())
    ]
    by_entropy, by_margin = ((policy(x).argmax(dim=1) != actions).float().mean() for x in found)
    assert by_entropy < 0.05
    assert by_margin > 0.2
