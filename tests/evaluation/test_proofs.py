"""On a CPU attacks leave images alone whose action is decided; the result is the same."""

import dataclasses

import pytest
import torch
from torch import Generator, Tensor, nn

from bcl.attacks import FGSM, PGD, SUITES, CornerNoise, Multi, MultiT, UniformNoise
from bcl.config import resolve
from bcl.envs import make_env
from bcl.evaluation import evaluate, proofs
from bcl.evaluation.plan import network_passes
from bcl.evaluation.play import ActionChooser, SearchForm, _has_open_rows
from bcl.evaluation.proofs import COMPARE_EVERY, OfOpenRows, OpenRows, proven
from bcl.policies import Policy, PolicySpec

# All but those that look at proofs themselves.
ATTACKS = [attack for attack in SUITES["strong"] if not isinstance(attack, Multi | MultiT)]
ATTACKS += [FGSM(), UniformNoise(), CornerNoise()]
BUDGETS = torch.tensor([1e-6, 0.3, 1e-6, 0.3], dtype=torch.float64)


@pytest.fixture(scope="module")
def policy() -> Policy:
    torch.manual_seed(1)
    return Policy(PolicySpec("plain-cnn", (1, 36, 36), 3, (0.0,), (1.0,), ())).double().eval()


@pytest.fixture(scope="module")
def obs() -> Tensor:
    return torch.rand(4, 1, 36, 36, dtype=torch.float64, generator=Generator().manual_seed(2))


def by_intervals(policy: Policy, obs: Tensor) -> list[bool]:
    return proven(policy, obs, BUDGETS.view(-1, 1, 1, 1), method="ibp").tolist()


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_where_every_action_is_proven_nothing_is_computed_for_an_attack(
    attack, policy: Policy, obs: Tensor, monkeypatch
):
    search = SearchForm(policy, "full")
    open_rows = OpenRows(policy, network_passes(attack), lambda: torch.zeros(4, dtype=torch.bool))
    choose = ActionChooser(policy, search, attack, BUDGETS, Generator().manual_seed(3), open_rows=open_rows)
    monkeypatch.setattr(SearchForm, "forward", lambda self, obs: pytest.fail("computed"))
    decided = choose(obs)
    assert (decided.distance <= BUDGETS + 1e-12).all()
    assert torch.equal(decided.clean, policy(obs).argmax(dim=1))


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_the_same_is_shown_and_done_where_proven_actions_are_left_alone(attack, policy: Policy, obs: Tensor):
    assert by_intervals(policy, obs) == [True, False, True, False]
    assert _has_open_rows(attack, obs)
    found = []
    for asks in (True, False):
        open_rows = OpenRows(policy, network_passes(attack), None) if asks else None
        generator = Generator().manual_seed(3)
        search = SearchForm(policy, "full")
        choose = ActionChooser(policy, search, attack, BUDGETS, generator, open_rows=open_rows)
        found.append([choose(obs) for _ in range(3)])  # the first step compares
    for decided, expected in zip(*found, strict=True):
        assert torch.equal(decided.actions, expected.actions)
        assert torch.equal(decided.noted, expected.noted)
        assert torch.allclose(decided.seen[[1, 3]], expected.seen[[1, 3]], atol=1e-12)
        assert (decided.distance <= BUDGETS + 1e-12).all()


def test_rows_are_computed_for_every_copy_of_the_batch_and_others_have_no_gradient(policy: Policy, obs: Tensor):
    rows = torch.tensor([False, True, True, False])
    part = OfOpenRows(policy, rows, 3)
    copies = torch.cat([obs, obs.flip(0), 1 - obs]).requires_grad_()
    scores = part(copies)
    whole = policy(copies)
    open_rows = rows.repeat(3)
    assert torch.allclose(scores[open_rows], whole[open_rows], atol=1e-12)
    assert not scores[~open_rows].any()
    assert (scores.shape, scores.dtype) == (whole.shape, whole.dtype)
    (gradient,) = torch.autograd.grad(scores.square().sum(), copies)
    moved = gradient.flatten(1).abs().amax(dim=1) > 0
    assert moved.tolist() == open_rows.tolist()
    assert torch.equal(part.low, policy.low)
    assert torch.equal(part.high, policy.high)


def test_every_32nd_step_has_all_that_count_so_that_a_wrong_proof_would_be_seen(policy: Policy, obs: Tensor):
    open_rows = OpenRows(policy, 30, None)
    scores = policy(obs).detach()
    found = [open_rows(obs, BUDGETS, scores).tolist() for _ in range(COMPARE_EVERY + 2)]
    unproven = [False, True, False, True]
    assert found == [[True] * 4, *[unproven] * (COMPARE_EVERY - 1), [True] * 4, unproven]


def test_copies_that_are_done_are_closed(policy: Policy, obs: Tensor):
    counting = torch.tensor([True, False, True, False])
    open_rows = OpenRows(policy, 30, lambda: counting.clone())
    scores = policy(obs).detach()
    assert open_rows(obs, BUDGETS, scores).tolist() == [True, False, True, False]
    assert open_rows(obs, BUDGETS, scores).tolist() == [False] * 4  # what counts is proven


def test_an_image_alone_is_attacked_all_the_same(obs: Tensor):
    assert [_has_open_rows(ATTACKS[0], some) for some in (obs[:2], obs[:1], obs.flatten(1))] == [True, False, False]


@pytest.mark.parametrize(("eps", "passes", "asked"), [(0.3, 30, 2), (1e-6, 2, 0), (1e-6, 30, COMPARE_EVERY + 1)])
def test_proofs_are_made_where_they_save_time(policy: Policy, obs: Tensor, monkeypatch, eps, passes, asked):
    calls = []
    monkeypatch.setattr(proofs, "proven", lambda *given: (calls.append(1), proven(*given))[1])
    open_rows = OpenRows(policy, passes, None)
    for _ in range(COMPARE_EVERY + 1):
        open_rows(obs, eps, policy(obs).detach())
    assert len(calls) == asked


def test_where_a_layer_has_no_bounds_everything_is_attacked(obs: Tensor):
    network = nn.Sequential(nn.Flatten(), nn.Linear(36 * 36, 8), nn.ELU(), nn.Linear(8, 2)).double()
    policy = Policy(PolicySpec("custom", (1, 36, 36), 2, (0.0,), (1.0,)), network)
    open_rows = OpenRows(policy, 30, None)
    for _ in range(3):
        assert open_rows(obs, 1e-6, policy(obs).detach()).all()


def test_a_copy_whose_episodes_are_done_is_no_longer_attacked(monkeypatch):
    torch.manual_seed(0)
    game = dataclasses.replace(resolve("pong").game, max_steps=3)
    policy = Policy(PolicySpec("dueling-cnn", (1, 84, 84), 4, (0.0,), (1.0,), game=game)).eval()
    rows = []
    forward = SearchForm.forward
    monkeypatch.setattr(SearchForm, "forward", lambda self, obs: (rows.append(len(obs)), forward(self, obs))[1])
    score = evaluate(policy, make_env(game, 2), PGD(steps=2, step=1.0), 20 / 255, episodes=3)
    assert score.lengths == (3, 3, 3)
    assert set(rows[3:12]) == {2}
    assert rows[-3:] == [1, 1, 1]  # a clean pass and two steps, for the copy that plays a second episode
