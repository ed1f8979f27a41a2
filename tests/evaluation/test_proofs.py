"""On a CPU attacks leave images alone whose action is decided; the result is the same."""

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from torch import Generator, Tensor, nn

from bcl.attacks import FGSM, PGD, SUITES, Multi, MultiT, WorstAction
from bcl.attacks.pgd import Together
from bcl.config import resolve
from bcl.envs import make_env
from bcl.evaluation import Cell, Plan, evaluate, evaluate_cells, play, proofs
from bcl.evaluation.plan import network_passes
from bcl.evaluation.play import ActionChooser, Probe, SearchForm, _has_open_rows
from bcl.evaluation.proofs import COMPARE_EVERY, OfOpenRows, OpenRows, proven
from bcl.policies import Policy, PolicySpec

# Those of one pass ask for no proof; Multi and Multi-T look themselves.
ATTACKS = [
    attack for attack in SUITES["strong"] if network_passes(attack) > 2 and not isinstance(attack, Multi | MultiT)
]
BUDGETS = torch.tensor([1e-6, 0.3, 1e-6, 0.3], dtype=torch.float64)


@dataclass(frozen=True)
class OwnAttack:
    """Of a user."""

    def __call__(self, policy, obs: Tensor, eps, generator) -> Tensor:
        return obs


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
    open_rows = OpenRows(policy, network_passes(attack), None)
    choose = ActionChooser(policy, search, attack, BUDGETS[[0, 2]], Generator().manual_seed(3), open_rows=open_rows)
    choose(obs[[0, 2]])  # the first step compares
    monkeypatch.setattr(SearchForm, "forward", lambda self, obs: pytest.fail("computed"))
    decided = choose(obs[[0, 2]])
    assert (decided.distance <= BUDGETS[[0, 2]] + 1e-12).all()
    assert torch.equal(decided.actions, policy(obs[[0, 2]]).argmax(dim=1))


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_the_same_is_shown_and_done_where_proven_actions_are_left_alone(attack, policy: Policy, obs: Tensor):
    assert by_intervals(policy, obs) == [True, False, True, False]
    assert _has_open_rows(policy, attack, obs)
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


@pytest.mark.parametrize(
    ("attack", "rows"),
    # Of ten images, of which three differ: those, and all under an attack that draws for each. Of each step, forth.
    [(PGD(5, 0.3), 3 * 6), (FGSM(), 3 * 2), (PGD(5, 0.3, random_start=True), 10 * 6)],
    ids=repr,
)
def test_images_that_are_the_same_are_attacked_once(attack, rows: int, policy: Policy, obs: Tensor, monkeypatch):
    same = obs[[0, 1, 0, 2, 2, 1, 0, 0, 0, 1]]
    computed: list[int] = []
    forward = SearchForm.forward
    monkeypatch.setattr(SearchForm, "forward", lambda self, seen: (computed.append(len(seen)), forward(self, seen))[1])
    found = []
    for asks in (True, False):
        computed.clear()
        open_rows = OpenRows(policy, 0, None) if asks else None  # looks for no proof
        generator = Generator().manual_seed(3)
        choose = ActionChooser(policy, SearchForm(policy, "full"), attack, 0.3, generator, open_rows=open_rows)
        found.append(choose(same))
        if asks:
            assert sum(computed) == rows
    once, each = found
    assert torch.allclose(once.seen, each.seen, atol=1e-12)
    assert torch.equal(once.actions, each.actions)
    assert torch.equal(once.noted, each.noted)


def test_images_that_are_the_same_at_other_budgets_are_attacked_for_each(policy: Policy, obs: Tensor):
    eps = torch.tensor([0.3, 0.1, 0.3, 0.2], dtype=torch.float64)
    open_rows = OpenRows(policy, 0, None)
    choose = ActionChooser(
        policy, SearchForm(policy, "full"), FGSM(), eps, Generator().manual_seed(3), open_rows=open_rows
    )
    assert choose(obs[[0, 0, 0, 0]]).distance.tolist() == pytest.approx(eps.tolist())


def test_a_copy_that_is_done_is_no_twin(policy: Policy, obs: Tensor):
    counting = torch.tensor([False, True, True])
    open_rows = OpenRows(policy, 0, counting.clone)
    search = SearchForm(policy, "full")
    choose = ActionChooser(policy, search, FGSM(), 0.3, Generator().manual_seed(3), open_rows=open_rows)
    assert choose(obs[[0, 0, 0]]).distance.tolist() == pytest.approx([0, 0.3, 0.3])


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
    policy = Policy(PolicySpec("plain-cnn", (1, 36, 36), 3, (0.0,), (1.0,), ()))
    seen = [_has_open_rows(policy, ATTACKS[0], some) for some in (obs[:2], obs[:1], obs.flatten(1))]
    assert seen == [True, False, False]


def test_networks_and_attacks_of_ones_own_and_attacks_in_one_batch_get_every_image(policy: Policy, obs: Tensor):
    """Whose rows may depend on each other, or are no copies of the batch one after the other."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(36 * 36, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).double()
    own = Policy(PolicySpec("custom", (1, 36, 36), 2, (0.0,), (1.0,)), network)
    assert not _has_open_rows(own, ATTACKS[0], obs)
    assert not _has_open_rows(policy, OwnAttack(), obs)
    assert not _has_open_rows(policy, Together((PGD(50, 0.1), WorstAction())), obs)
    with pytest.raises(ValueError, match="4 rows are no copies of 3"):
        OfOpenRows(policy, torch.ones(3, dtype=torch.bool), 3)(obs)


@pytest.mark.parametrize(("eps", "passes", "asked"), [(0.3, 30, 2), (1e-6, 2, 0), (1e-6, 30, COMPARE_EVERY + 1)])
def test_proofs_are_made_where_they_save_time(policy: Policy, obs: Tensor, monkeypatch, eps, passes, asked):
    calls = []
    monkeypatch.setattr(proofs, "proven", lambda *given: (calls.append(1), proven(*given))[1])
    open_rows = OpenRows(policy, passes, None)
    for _ in range(COMPARE_EVERY + 1):
        open_rows(obs, eps, policy(obs).detach())
    assert len(calls) == asked


@pytest.mark.parametrize("certified", [(), (1 / 255,)])
def test_at_budgets_with_certificates_every_step_attacks_every_action(certified, monkeypatch):
    monkeypatch.setattr(play, "first_alike", lambda obs, eps: torch.arange(len(obs)))  # copies begin alike
    game = dataclasses.replace(resolve("pong").game, max_steps=4)
    policy = Policy(PolicySpec("dueling-cnn", (1, 84, 84), 4, (0.0,), (1.0,), game=game)).eval()
    monkeypatch.setattr(proofs, "proven", lambda policy, obs, *_: torch.ones(len(obs), dtype=torch.bool))
    rows = []
    monkeypatch.setattr(PGD, "__call__", lambda self, policy, obs, *_: (rows.append(computed(policy, obs)), obs)[1])
    plan = Plan(game, 2, num_envs=2)
    cell = Cell(PGD(steps=30, step=0.1), 1 / 255)
    certificates = dict.fromkeys(certified, "ibp")
    [*evaluate_cells(policy, [make_env(game, 2)], [cell], plan, certificates)]
    first, *later = rows
    assert first == 2  # it compares
    assert set(later) == {2 if certified else 0}


def test_when_a_cell_is_done_the_others_still_compare_where_everything_is_attacked(monkeypatch):
    games = [dataclasses.replace(resolve("pong").game, max_steps=steps) for steps in (4, 40)]
    policy = Policy(PolicySpec("dueling-cnn", (1, 84, 84), 4, (0.0,), (1.0,), game=games[1])).eval()
    monkeypatch.setattr(proofs, "proven", lambda policy, obs, *_: torch.ones(len(obs), dtype=torch.bool))
    monkeypatch.setattr(PGD, "__call__", lambda self, policy, obs, *_: obs)
    events = []
    asked = OpenRows.__call__
    monkeypatch.setattr(
        OpenRows, "__call__", lambda *given: (found := asked(*given), events.append(bool(found.all())))[0]
    )
    monkeypatch.setattr(Probe, "__call__", lambda self, slots: events.append("compared"))
    cells = [Cell(PGD(steps=30, step=0.1), 1 / 255, game) for game in games]
    [*evaluate_cells(policy, [make_env(game, 2) for game in games], cells, Plan(games[1], 2, num_envs=2))]
    before = [events[i - 1] for i, event in enumerate(events) if event == "compared"]
    assert len(before) == 3  # the first step of both, the first of one alone, the 32nd after that
    assert all(before)


def computed(policy, obs: Tensor) -> int:
    """Of how many rows a policy looks at the observation."""
    obs = obs.clone().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(policy(obs).square().sum(), obs)
    return int((gradient.flatten(1) != 0).any(dim=1).sum())


def test_proofs_are_made_of_copies_that_count_alone(policy: Policy, obs: Tensor, monkeypatch):
    asked = []
    monkeypatch.setattr(proofs, "proven", lambda *given: (asked.append(len(given[1])), proven(*given))[1])
    open_rows = OpenRows(policy, 30, lambda: torch.tensor([True, True, False, False]))
    for _ in range(3):
        open_rows(obs, BUDGETS, policy(obs).detach())
    assert asked == [2, 2, 2]
    done = OpenRows(policy, 30, lambda: torch.zeros(4, dtype=torch.bool))
    assert not done(obs, BUDGETS, policy(obs).detach()).any()


def test_a_copy_whose_episodes_are_done_is_no_longer_attacked(monkeypatch):
    monkeypatch.setattr(play, "first_alike", lambda obs, eps: torch.arange(len(obs)))  # copies begin alike
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
