"""Distillation's loss, by hand and against PyTorch's cross-entropy."""

import math

import pytest
import torch
from torch.nn import functional as F

from bcl import losses


def test_mistakes_are_shares_of_the_scale_and_the_best_action_is_none():
    scores = torch.tensor([[3.0, 2.0, 3.0, -5.0]])
    assert losses.mistakes(scores, torch.tensor(4.0)).tolist() == [[0.0, 0.25, 0.0, 1.0]]


def test_weights_go_by_what_the_worst_action_costs():
    scores = torch.tensor([[0.0, 1.0, 0.5], [3.0, 3.0, -1.0], [0.0, 0.0, 0.01], [0.0, 500.0, 0.0]])
    weight = torch.tensor([0.2, 0.2, 0.2, 0.4])
    found = losses.weighted_by_stakes(weight, scores, torch.tensor(2.0), power=1.0)
    by_hand = torch.tensor([0.2 * 0.5, 0.2 * 2.0, 0.2 * 0.1, 0.4 * 10.0])
    assert torch.allclose(found, by_hand / by_hand.sum())
    squares = losses.weighted_by_stakes(weight, scores, torch.tensor(2.0), power=2.0)
    assert squares[1] / squares[0] == pytest.approx((2.0 / 0.5) ** 2)
    assert torch.allclose(losses.weighted_by_stakes(weight, scores, torch.tensor(2.0), power=0.0), weight)


def test_leads_are_distances_from_the_action():
    assert losses.leads(torch.tensor([[1.0, 4.0, 2.0]]), torch.tensor([1])).tolist() == [[3.0, 0.0, 2.0]]


def test_with_whole_mistakes_it_is_the_cross_entropy():
    draw = torch.Generator().manual_seed(0)
    scores, seen = torch.randn(2, 7, 5, generator=draw)
    actions = torch.randint(5, (7,), generator=draw)
    whole = F.one_hot(actions, 5) == 0
    weight = torch.full((7,), 1 / 7)
    loss, info = losses.distilled(
        losses.leads(scores, actions), losses.leads(seen, actions), whole.float(), weight, kappa=0.25
    )
    assert info["plain"] == pytest.approx(F.cross_entropy(scores, actions).item(), rel=1e-5)
    assert info["robust"] == pytest.approx(F.cross_entropy(seen, actions).item(), rel=1e-5)
    assert loss.item() == pytest.approx(0.25 * info["plain"].item() + 0.75 * info["robust"].item())


def test_by_hand_with_shares_and_a_row_that_does_not_count():
    clean = torch.tensor([[0.0, 1.0, -1.0], [0.0, 9.0, 9.0]])
    worst = torch.tensor([[0.0, -2.0, -1.0], [0.0, -9.0, -9.0]])
    mistakes = torch.tensor([[0.0, 1.0, 0.5], [0.0, 1.0, 1.0]])
    loss, info = losses.distilled(clean, worst, mistakes, torch.tensor([1.0, 0.0]), kappa=0.5)
    plain = math.log(1 + math.exp(-1) + 0.5 * math.exp(1))
    robust = math.log(1 + math.exp(2) + 0.5 * math.exp(1))
    assert info["plain"] == pytest.approx(plain, rel=1e-5)
    assert info["robust"] == pytest.approx(robust, rel=1e-5)
    assert loss == pytest.approx((plain + robust) / 2, rel=1e-5)


def test_actions_as_good_as_the_teachers_cost_nothing_and_get_no_gradient():
    lead = torch.tensor([[0.0, -5.0]], requires_grad=True)
    loss, info = losses.distilled(lead, lead, torch.zeros(1, 2), torch.ones(1), kappa=0.5)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert lead.grad.abs().max() < 1e-6
    assert info["held"] == 0, "no state counts"


def test_held_counts_states_whose_every_clear_mistake_is_behind():
    mistakes = torch.tensor([[0.0, 1.0, 0.3], [0.0, 1.0, 0.6], [0.0, 0.1, 0.1], [0.0, 0.9, 0.9]])
    worst = torch.tensor([[0.0, 1.0, -1.0], [0.0, 1.0, -1.0], [0.0, -1.0, -1.0], [0.0, 1.0, 2.0]])
    _, info = losses.distilled(worst.abs(), worst, mistakes, torch.full((4,), 0.25), kappa=0.5)
    assert info["held"] == pytest.approx(2 / 3)  # the third has no clear mistake
    assert info["agrees"] == pytest.approx(1)


def test_gain_is_what_is_left_over_one_action_for_all_states():
    costs = torch.tensor([[0.0, 4.0, 2.0], [0.0, 1.0, 3.0], [1.0, 0.0, 9.0], [2.0, 0.0, 2.0]])
    weight = torch.full((4,), 0.25)  # always the first action costs 3 / 4, the second 5 / 4, the third 4
    behind = torch.where(costs > 0, 1.0, 0.0)
    assert losses.gain(behind, costs, weight) == 1
    first = torch.tensor(
        [[0.0, 1.0, 1.0], [0.0, 1.0, 1.0], [-1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]]
    )  # always the first is taken
    assert losses.gain(first, costs, weight) == pytest.approx(0)
    one_of_two = torch.tensor([[0.0, 1.0, 1.0], [0.0, -1.0, -2.0], [1.0, 0.0, 1.0], [1.0, 0.0, 1.0]])  # may cost 3 once
    assert losses.gain(one_of_two, costs, weight) == pytest.approx(0)
    assert losses.gain(one_of_two, costs, torch.tensor([0.0, 0.0, 0.5, 0.5])) == 1  # of rows that count
    assert (
        losses.gain(-behind, torch.tensor([[0.0, 1.0, 1.0]] * 4), weight) == -1
    )  # one action is always right, another taken
