"""Objectives against their formulas."""

import pytest
import torch

from bcl.attacks import (
    FGSM,
    KL,
    PGD,
    RIFGSM,
    AwayFromActions,
    CrossEntropy,
    Margin,
    MinBest,
    OwnValue,
    TargetValue,
    TowardActions,
    perturb,
)
from bcl.attacks.objectives import ascent

SCORES = torch.tensor([[0.5, -1.0, 2.0], [1.0, 0.9, -3.0]], dtype=torch.float64)
CLEAN = torch.tensor([[3.0, 1.0, 2.0], [0.0, 4.0, -1.0]], dtype=torch.float64)  # actions 0 and 1; worst 1 and 2
VALUES = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.0, 5.0]], dtype=torch.float64)
P = SCORES.exp() / SCORES.exp().sum(dim=1, keepdim=True)
P_CLEAN = CLEAN.exp() / CLEAN.exp().sum(dim=1, keepdim=True)


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        (CrossEntropy(), torch.stack([-P[0, 0].log(), -P[1, 1].log()])),
        (MinBest(), torch.stack([P[0, 1].log(), P[1, 2].log()])),
        (Margin(), torch.tensor([2.0 - 0.5, 1.0 - 0.9])),
        (KL(), (P_CLEAN * (P_CLEAN / P).log()).sum(dim=1)),
        (TargetValue(VALUES), -(P * VALUES).sum(dim=1)),
        (OwnValue(), -(P * SCORES).sum(dim=1)),
        (AwayFromActions(torch.tensor([2, 0])), torch.stack([-P[0, 2].log(), -P[1, 0].log()])),
        (TowardActions(torch.tensor([0, 1])), torch.tensor([0.5 - 2.0, 0.9 - 1.0])),
    ],
    ids=lambda value: "" if isinstance(value, torch.Tensor) else repr(value),
)
def test_values_and_stacked_batches(objective, expected):
    torch.testing.assert_close(objective(SCORES, CLEAN), expected.double())
    stacked = objective(SCORES.repeat(3, 1), CLEAN.repeat(3, 1))
    torch.testing.assert_close(stacked, expected.double().repeat(3))


def test_own_value_differentiates_both_factors():
    scores = SCORES.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(-OwnValue()(scores, CLEAN).sum(), scores)
    torch.testing.assert_close(gradient, P * (1 + SCORES - (P * SCORES).sum(dim=1, keepdim=True)))
    torch.testing.assert_close(gradient.sum(dim=1), torch.ones(2, dtype=torch.float64))


def test_kl_has_no_gradient_at_the_clean_point():
    scores = CLEAN.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(KL()(scores, CLEAN).sum(), scores)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient))


def test_margin_is_positive_exactly_on_flips(seeded):
    scores, clean = torch.randn(2, 500, 4, generator=seeded(0))
    assert torch.equal(Margin()(scores, clean) > 0, scores.argmax(dim=1) != clean.argmax(dim=1))


def test_margin_pulls_where_cross_entropy_is_saturated():
    clean = torch.tensor([[200.0, 0.0, -5.0]])
    gradients = []
    for objective in (CrossEntropy(), Margin()):
        scores = clean.clone().requires_grad_()
        gradients += torch.autograd.grad(objective(scores, clean).sum(), scores)
    assert (gradients[0] == 0).all()
    assert gradients[1].tolist() == [[-1.0, 1.0, 0.0]]


@pytest.mark.parametrize(
    ("attack", "passes"),
    [
        (RIFGSM(), 2),
        (RIFGSM(OwnValue()), 1),
        (RIFGSM(TargetValue(torch.rand(2, 3))), 1),
        (FGSM(OwnValue()), 1),
        (PGD(4, 0.5), 5),
        (PGD(4, 0.5, objective=AwayFromActions(torch.tensor([2, 0]))), 4),
        (PGD(4, 0.5, random_start=True, restarts=2, objective=OwnValue()), 6),  # the best restart: by the clean action
    ],
)
def test_clean_scores_are_computed_where_they_are_looked_at(attack, passes):
    layer, calls = torch.nn.Linear(5, 3), []

    class Counted(torch.nn.Module):
        low, high = torch.zeros(1), torch.ones(1)

        def forward(self, obs):
            calls.append(len(obs))
            return layer(obs)

    perturb(attack, Counted(), torch.rand(2, 5), 0.1, torch.Generator().manual_seed(0))
    assert len(calls) == passes


class FarAhead:
    """Two actions of which the first leads by `lead`, in a network that computes in `dtype`."""

    low, high = torch.tensor(0.0), torch.tensor(1.0)

    def __init__(self, lead, dtype):
        self._lead, self._dtype = torch.tensor([lead, 0.0]), dtype

    def __call__(self, obs):
        return (obs.to(self._dtype) * 1e-3).to(obs.dtype) + self._lead


@pytest.mark.parametrize(
    ("dtype", "lead", "lost", "moves"),
    [  # what docs/attacks.md says of rescaled gradients
        (torch.float32, 10.0, [False, False], [True, True]),
        (torch.float32, 20.0, [True, False], [False, True]),
        (torch.float32, 102.0, [True, True], [False, True]),
        (torch.float32, 104.0, [True, True], [False, False]),
        (torch.float16, 15.0, [True, True], [True, True]),
        (torch.float16, 50.0, [True, True], [False, True]),
    ],
)
def test_rescaled_gradients_lead_on_where_others_are_lost(dtype, lead, lost, moves):
    policy, obs = FarAhead(lead, dtype), torch.full((1, 2), 0.5)
    point = obs.clone().requires_grad_()
    (plain,) = torch.autograd.grad(torch.nn.functional.cross_entropy(policy(point), torch.tensor([0])), point)
    _, _, rescaled = ascent(CrossEntropy(), policy, obs, policy(obs))
    assert (plain == 0).tolist() == [lost]
    assert (rescaled != 0).tolist() == [moves]
    assert rescaled[0, 0] <= 0 <= rescaled[0, 1]
