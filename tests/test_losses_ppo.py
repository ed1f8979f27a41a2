"""PPO's losses against numbers worked out by hand, and advantages against sums written out from their definition."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bcl import losses

LOG2 = math.log(2)


def double(rows):
    return torch.tensor(rows, dtype=torch.float64)


def logs(rows):
    """Logits of probabilities in these proportions."""
    return double(rows).log()


# Actions 0 and 2 have probability 1/4 and 1/2 now and had 1/5 and 4/5: ratios 5/4 and 5/8, advantages 2 and -1.
CLEAN = logs([[1, 2, 1], [1, 1, 2]])
VALUES = double([1.0, 3.0])
PAST = losses.Past(
    actions=torch.tensor([0, 2]),
    log_probs=logs([0.2, 0.8]),
    values=double([0.5, 2.875]),
    advantages=double([2.0, -1.0]),
    targets=double([2.0, 2.0]),
    weight=double([0.5, 0.5]),
)
WEIGHTS = losses.LossWeights(clip=0.2, value=0.5, entropy=0.01)
SURROGATE = -(
    0.5 * 1.2 * 2 + 0.5 * 0.8 * -1
)  # both ratios are clipped: the first cannot gain more, nor the second lose less
# Values moved by 1/2, of which 0.2 count, and by 1/8: max(1, 1.3^2) and max(1, 1).
VALUE = (0.5 * 1.69 + 0.5 * 1) / 2
ENTROPY = 1.5 * LOG2  # of 1/4, 1/2, 1/4 in either order
REST = 0.5 * VALUE - 0.01 * ENTROPY


# --- standard


def test_standard_by_hand():
    loss, info = losses.ppo(CLEAN, VALUES, PAST, WEIGHTS)
    assert loss.item() == pytest.approx(SURROGATE + REST)
    kl = 0.5 * (math.log(0.2) - math.log(0.25)) + 0.5 * (math.log(0.8) - math.log(0.5))
    expected = {"surrogate": SURROGATE, "value": VALUE, "entropy": ENTROPY, "kl": kl, "loss": SURROGATE + REST}
    assert {name: value.item() for name, value in info.items()} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("old", "advantage", "gain", "slope"),
    [  # the action's probability is 1/4; slope of the gain in the ratio
        (0.25, 3, 3.0, 3), (0.2, 3, 3.6, 0), (0.2, -3, -3.75, -3), (0.5, 3, 1.5, 3), (0.5, -3, -2.4, 0),
    ],
)  # fmt: skip
def test_the_gradient_stops_where_the_gain_is_clipped(old, advantage, gain, slope):
    logits = CLEAN[:1].clone().requires_grad_()
    past = losses.Past(torch.tensor([0]), logs([old]), VALUES[:1], double([advantage]), VALUES[:1], double([1.0]))
    loss, info = losses.ppo(logits, VALUES[:1], past, losses.LossWeights(0.2, 0.5, 0.0))
    assert info["surrogate"].item() == pytest.approx(-gain)
    (gradient,) = torch.autograd.grad(loss, logits)
    ratio = 0.25 / old
    expected = [
        -slope * ratio * (1 - 0.25),
        slope * ratio * 0.5,
        slope * ratio * 0.25,
    ]  # d ratio / dz_j = ratio (1_j=a - p_j)
    assert gradient[0].tolist() == pytest.approx(expected)


def test_the_value_learns_from_the_worse_of_both_errors():
    values = VALUES.clone().requires_grad_()
    loss, _ = losses.ppo(CLEAN, values, PAST, losses.LossWeights(0.2, 1.0, 0.0))
    (gradient,) = torch.autograd.grad(loss, values)
    assert gradient.tolist() == pytest.approx([0.0, 0.5 * 1.0])  # the first is clipped; of the second x^2 / 2 at x = 1


def test_rows_without_weight_do_not_count():
    past = PAST._replace(weight=double([1.0, 0.0]))
    loss, _ = losses.ppo(CLEAN, VALUES, past, WEIGHTS)
    alone, _ = losses.ppo(CLEAN[:1], VALUES[:1], losses.Past(*(x[:1] for x in past)), WEIGHTS)
    assert loss.item() == pytest.approx(alone.item())


# --- robust


SEEN = logs([[1, 6, 2], [1, 1, 8]])
# First sample, action 0: pi_1 = 1/(1+2+1), pi_2 = 1/(1+6+2); ratios 5/4 and 5/9, gains 2.4 and 10/9.
# Second, action 2: pi_1 = 8/(1+1+8), pi_2 = 2/(1+1+2); ratios 1 and 5/8, gains -1 and -0.8.
ADVERSARIAL = -(0.5 * 10 / 9 + 0.5 * -1)
UPPER, LOWER = logs([[2, 3, 1.5], [2, 2, 6]]), logs([[0.5, 1, 0.5], [1, 1, 1]])
# First: pi_1 = 2/(2+1+1/2), pi_2 = 0.5/(0.5+3+1.5); ratios 20/7 and 1/2, gains 2.4 and 1.
# Second: pi_1 = 6/(1+1+6), pi_2 = 1/(2+2+1); ratios 15/16 and 1/4, gains -15/16 and -0.8.
RADIAL = -(0.5 * 1 + 0.5 * -15 / 16)


@pytest.mark.parametrize("kappa", [0.5, 1.0, 0.25])
def test_adversarial_by_hand(kappa):
    loss, info = losses.ppo_adversarial(CLEAN, VALUES, SEEN, PAST, WEIGHTS, kappa)
    assert loss.item() == pytest.approx(kappa * SURROGATE + (1 - kappa) * ADVERSARIAL + REST)
    assert info["robust"].item() == pytest.approx(ADVERSARIAL)
    assert info["fooled"].item() == 0  # 1 and 2 are the best, clean and under attack


@pytest.mark.parametrize("kappa", [0.5, 1.0, 0.25])
def test_radial_by_hand(kappa):
    loss, info = losses.ppo_radial(CLEAN, VALUES, LOWER, UPPER, PAST, WEIGHTS, kappa)
    assert loss.item() == pytest.approx(kappa * SURROGATE + (1 - kappa) * RADIAL + REST)
    assert info["robust"].item() == pytest.approx(RADIAL)
    assert info["certified"].item() == 0  # 1 and 2 are the best: from 1 on, where others reach 2


@pytest.mark.parametrize(("width", "proven"), [(0.34, 1.0), (0.35, 0.0)])  # the lead is log 2
def test_radial_tells_the_share_of_actions_that_its_bounds_prove(width, proven):
    _, info = losses.ppo_radial(CLEAN, VALUES, CLEAN - width, CLEAN + width, PAST, WEIGHTS, 0.5)
    assert info["certified"].item() == pytest.approx(proven)


def gradients(kappa, entropy=0.0):
    clean, values, seen = (x.clone().requires_grad_() for x in (CLEAN, VALUES, SEEN))
    past = losses.Past(PAST.actions, *(x.clone().requires_grad_() for x in PAST[1:]))
    loss, _ = losses.ppo_adversarial(clean, values, seen, past, losses.LossWeights(0.2, 0.5, entropy), kappa)
    return torch.autograd.grad(loss, [clean, values, seen])


def test_robust_gradients_reach_the_worse_mixture_only():
    clean, _, seen = gradients(kappa=0.0)
    # First: pi_2 = (1, 6, 2)/9, the action's logit from the clean pass: gain 2 r, r = 5/9. Second: pi_1 = (1, 1, 8)/10.
    slope = 0.5 * 2 * 5 / 9
    assert clean[0].tolist() == pytest.approx([-slope * 8 / 9, 0, 0])
    assert seen[0].tolist() == pytest.approx([0, slope * 6 / 9, slope * 2 / 9])
    slope = 0.5 * -1 * 1
    assert clean[1].tolist() == pytest.approx([slope / 10, slope / 10, 0])
    assert seen[1].tolist() == pytest.approx([0, 0, -slope * 2 / 10])


def test_value_and_entropy_are_of_the_clean_pass():
    _, values, seen = gradients(kappa=1.0, entropy=0.5)
    assert seen.abs().max() == 0
    assert values.abs().max() > 0


def test_without_a_perturbation_the_robust_loss_is_the_standard_one():
    loss, _ = losses.ppo(CLEAN, VALUES, PAST, WEIGHTS)
    assert losses.ppo_adversarial(CLEAN, VALUES, CLEAN, PAST, WEIGHTS, 0.3)[0].item() == pytest.approx(loss.item())
    assert losses.ppo_radial(CLEAN, VALUES, CLEAN, CLEAN, PAST, WEIGHTS, 0.3)[0].item() == pytest.approx(loss.item())


@given(seed=st.integers(0, 10**6), batch=st.integers(1, 6), actions=st.integers(2, 5), kappa=st.floats(0, 1))
def test_robust_losses_are_the_formula_sample_by_sample(seed, batch, actions, kappa):
    draw = torch.Generator().manual_seed(seed)
    clean, seen = torch.randn(2, batch, actions, generator=draw, dtype=torch.float64)
    numbers = torch.randn(4, batch, generator=draw, dtype=torch.float64)
    taken = torch.randint(actions, (batch,), generator=draw)
    weight = torch.rand(batch, generator=draw, dtype=torch.float64) + 0.1
    weight /= weight.sum()
    past = losses.Past(taken, numbers[0] - 1, numbers[1], numbers[2], numbers[3], weight)
    loss, _ = losses.ppo_adversarial(clean, torch.zeros(batch), seen, past, losses.LossWeights(0.2, 0.0, 0.0), kappa)

    def gain(row, i):
        total = sum(math.exp(z) for z in row)
        ratio = math.exp(row[taken[i]]) / total / math.exp(past.log_probs[i])
        a = past.advantages[i].item()
        return min(ratio * a, min(max(ratio, 0.8), 1.2) * a)

    expected = 0.0
    for i, (z, z_seen) in enumerate(zip(clean.tolist(), seen.tolist(), strict=True)):
        first, second = list(z), list(z_seen)
        first[taken[i]], second[taken[i]] = z_seen[taken[i]], z[taken[i]]
        robust = min(gain(first, i), gain(second, i))
        expected -= weight[i].item() * (kappa * gain(z, i) + (1 - kappa) * robust)
    assert loss.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


# --- advantages


def test_advantages_by_hand():
    # gamma = decay = 1/2, errors without an end 1, 2, 3; the second copy terminates at its second step, the third is
    # truncated there, its last observation being worth 6.
    column = lambda *row: double(row).unsqueeze(1).expand(3, 3).clone()  # noqa: E731
    rewards, values, after = column(1, 2, 3), column(1, 2, 4), column(2, 4, 8)
    after[1, 1], after[1, 2] = 99, 6
    terminated, ended = torch.zeros(2, 3, 3, dtype=torch.bool)
    terminated[1, 1] = True
    ended[1, 1:] = True
    found = losses.gae(rewards, values, after, terminated, ended, 0.5, 0.5)
    assert found.T.tolist() == [[1.6875, 2.75, 3], [1, 0, 3], [1.75, 3, 3]]


@given(seed=st.integers(0, 10**6), steps=st.integers(1, 8), gamma=st.floats(0, 1), decay=st.floats(0, 1))
def test_advantages_are_discounted_sums_of_errors(seed, steps, gamma, decay):
    draw = torch.Generator().manual_seed(seed)
    rewards, values, after = torch.randn(3, steps, 2, generator=draw, dtype=torch.float64)
    ended = torch.rand(steps, 2, generator=draw) < 0.3
    terminated = ended & (torch.rand(steps, 2, generator=draw) < 0.5)
    found = losses.gae(rewards, values, after, terminated, ended, gamma, decay)
    for copy in range(2):
        for t in range(steps):
            expected, discount = 0.0, 1.0
            for k in range(t, steps):
                future = 0.0 if terminated[k, copy] else gamma * after[k, copy].item()
                expected += discount * (rewards[k, copy].item() + future - values[k, copy].item())
                discount *= gamma * decay
                if ended[k, copy]:
                    break
            assert found[t, copy].item() == pytest.approx(expected, abs=1e-9)


def test_advantages_carry_no_gradient():
    values = torch.ones(2, 1, requires_grad=True)
    none = torch.zeros(2, 1, dtype=torch.bool)
    assert not losses.gae(values, values, values, none, none, 0.9, 0.9).requires_grad


def test_standardising_by_hand():
    found = losses.standardised(double([[1.0, 3.0], [5.0, 100.0]]), double([[0.25, 0.5], [0.25, 0.0]]))
    # mean 3, variance (4 + 0 + 4) / 4 = 2
    root = math.sqrt(2)
    assert found.flatten().tolist() == pytest.approx([-root, 0, root, 97 / root])
    assert losses.standardised(double([7.0, 7.0]), double([0.5, 0.5])).tolist() == [0, 0]
