"""The replay memory against hand computations, and against a list of everything that ever happened."""

import io
import random

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import chisquare

from bcl.envs import Step
from bcl.learners.replay import LEVELS, Replay, pack, unpack

FLAT = (1,)
# Rounding of observations around 1, which is all that may lead out of the ball or the box of valid observations.
FLOATS = 4e-7


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def flags(*values):
    return torch.tensor(values, dtype=torch.bool)


def add(
    replay, obs, reward, after, *, terminated=None, truncated=None, playing=None, seen=None, budget=0.0, actions=None
):
    """One vector step; `after` is what comes next of every copy, and 1000 more where an episode begins there."""
    copies = len(obs)
    terminated, truncated = (flags(*[False] * copies) if x is None else x for x in (terminated, truncated))
    ended = terminated | truncated
    shape = (-1, *[1] * (after.dim() - 1))
    begun = (
        torch.where(ended.view(shape), after + 1000, after) if after.is_floating_point() else after * ~ended.view(shape)
    )
    playing = flags(*[True] * copies) if playing is None else playing
    step = Step(begun, torch.full((copies,), 99.0), terminated, truncated, playing, after[ended])
    actions = torch.zeros(copies, dtype=torch.long) if actions is None else actions
    replay.add(obs, actions, reward, step, seen, torch.tensor(budget))


def memory(rows, copies=1, *, n_step=1, gamma=0.5, perturbations=False, shape=FLAT, dtype=torch.float32):
    like = torch.zeros(copies, *shape, dtype=dtype)
    return Replay(rows * copies, like, n_step=n_step, gamma=gamma, perturbations=perturbations)


def outcomes(replay, size=2000):
    """What follows each observation (a number) in a large sample: {obs: (reward, next_obs, discount)}."""
    batch = replay.sample(size, seeded())
    rows = zip(batch.obs, batch.rewards, batch.next_obs, batch.discounts, strict=True)
    found = {(o.item(), (r.item(), n.item(), d.item())) for o, r, n, d in rows}
    assert len(found) == len(dict(found)), "one observation, two outcomes"
    return dict(found)


def story(replay, rewards, *, terminated=(), truncated=(), cuts=()):
    """One copy: step t goes from observation t to t + 0.5."""
    for t, reward in enumerate(rewards):
        ends = {"terminated": flags(t in terminated), "truncated": flags(t in truncated)}
        add(replay, torch.tensor([[float(t)]]), torch.tensor([float(reward)]), torch.tensor([[t + 0.5]]), **ends)
        if t in cuts:
            replay.cut()


# --- what goes in comes out


def test_images_stay_bytes_and_come_out_as_floats():
    replay = memory(3, 2, shape=(1, 2, 2), dtype=torch.uint8)
    draw = torch.randint(256, (2, 3, 2, 1, 2, 2), dtype=torch.uint8, generator=seeded(1))
    obs, after = draw
    ended = flags(False, True)
    for t in range(3):
        actions = torch.tensor([2 * t, 2 * t + 1])
        ends = {"terminated": ended} if t == 1 else {}
        add(replay, obs[t], actions * 0.25, after[t], actions=actions, **ends)
    batch = replay.sample(500, seeded())
    assert set(batch.actions.tolist()) == set(range(6))
    assert batch.obs.dtype == batch.next_obs.dtype == torch.float32
    assert batch.seen is batch.obs
    t, copy = batch.actions // 2, batch.actions % 2
    assert torch.equal(batch.obs, obs[t, copy] / 255)
    assert torch.equal(batch.next_obs, after[t, copy] / 255)  # of the episode that ended its last, not the next's first
    assert torch.equal(batch.rewards, batch.actions * 0.25)
    assert torch.equal(batch.discounts, torch.where(batch.actions == 3, 0.0, 0.5))
    assert torch.equal(batch.weights, torch.full((500,), 1 / 500))


def test_final_observations_go_to_their_copies():
    replay = memory(1, 4)
    after = torch.tensor([[1.5], [2.5], [3.5], [4.5]])
    ends = {"terminated": flags(False, True, False, False), "truncated": flags(False, False, False, True)}
    add(replay, torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.zeros(4), after, **ends)
    assert outcomes(replay) == {1: (0, 1.5, 0.5), 2: (0, 2.5, 0), 3: (0, 3.5, 0.5), 4: (0, 4.5, 0.5)}


def test_what_was_given_may_be_overwritten():
    replay, obs, reward, after = memory(2), torch.tensor([[1.0]]), torch.tensor([2.0]), torch.tensor([[3.0]])
    add(replay, obs, reward, after)
    for tensor in (obs, reward, after):
        tensor.zero_()
    assert outcomes(replay) == {1: (2, 3, 0.5)}


# --- sums of rewards. gamma = 1/2; step 2 ends the game, step 4 meets a limit.


@pytest.mark.parametrize(
    ("n_step", "expected"),
    [
        (1, {0: (1, 0.5, 0.5), 1: (2, 1.5, 0.5), 2: (4, 2.5, 0), 3: (8, 3.5, 0.5), 4: (16, 4.5, 0.5), 5: (32, 5.5, 0.5)}),
        (2, {0: (2, 1.5, 0.25), 1: (4, 2.5, 0), 2: (4, 2.5, 0), 3: (16, 4.5, 0.25), 4: (16, 4.5, 0.5)}),
        (3, {0: (3, 2.5, 0), 1: (4, 2.5, 0), 2: (4, 2.5, 0), 3: (16, 4.5, 0.25)}),
    ],
)  # fmt: skip
def test_sums_by_hand(n_step, expected):
    replay = memory(6, n_step=n_step)
    story(replay, [1, 2, 4, 8, 16, 32], terminated={2}, truncated={4})
    assert outcomes(replay) == expected
    assert len(replay) == len(expected)


@pytest.mark.parametrize(
    ("n_step", "expected"),
    [
        (1, {0: (1, 0.5, 0.5), 1: (2, 1.5, 0.5), 2: (4, 2.5, 0.5), 3: (8, 3.5, 0.5)}),
        (3, {0: (2, 1.5, 0.25), 1: (2, 1.5, 0.5)}),
    ],
)
def test_sums_stop_where_the_copies_were_started_anew(n_step, expected):
    replay = memory(6, n_step=n_step)
    replay.cut()  # nothing there yet
    story(replay, [1, 2, 4, 8], cuts={1})
    assert outcomes(replay) == expected


def test_a_cut_after_the_last_row_of_the_ring():
    replay = memory(3, n_step=2)
    story(replay, [1, 2, 4, 8], cuts={2})  # step 2 lies in row 2, step 3 in row 0
    assert outcomes(replay) == {1: (4, 2.5, 0.25), 2: (4, 2.5, 0.5)}


def test_a_cut_leaves_the_end_of_a_game_an_end():
    replay = memory(3)
    story(replay, [1, 2], terminated={1}, cuts={1})
    assert outcomes(replay) == {0: (1, 0.5, 0.5), 1: (2, 1.5, 0)}


@pytest.mark.parametrize("n_step", [1, 2, 3])
@pytest.mark.parametrize("added", [4, 5, 6, 7, 9])
def test_sums_never_cross_the_newest_step(n_step, added):
    replay = memory(4, n_step=n_step, gamma=1.0)
    story(replay, [10**t for t in range(added)])
    newest = range(added - 4, added - n_step + 1)
    assert outcomes(replay) == {t: (sum(10 ** (t + k) for k in range(n_step)), t + n_step - 0.5, 1) for t in newest}


@pytest.mark.parametrize("seed", range(12))
def test_against_a_list_of_all_that_happened(seed):
    draw = random.Random(seed)
    copies, rows, n_step, gamma = draw.randint(1, 3), draw.randint(4, 7), draw.randint(1, 4), 0.75
    replay = memory(rows, copies, n_step=n_step, gamma=gamma)
    past = []  # [copy] of (obs, reward, after, terminated, stops) per step
    for t in range(draw.randint(rows, 4 * rows)):
        now = []
        for copy in range(copies):
            terminated, truncated = draw.random() < 0.2, draw.random() < 0.2
            now.append([10.0 * t + copy, draw.randint(-3, 3), 10.0 * t + copy + 5, terminated, terminated or truncated])
        past.append(now)
        obs, reward, after, terminated, ended = (torch.tensor(x) for x in zip(*now, strict=True))
        ends = {"terminated": terminated, "truncated": ended & ~terminated}
        add(replay, obs.view(-1, 1), reward.float(), after.view(-1, 1), **ends)
        if draw.random() < 0.1:
            replay.cut()
            for row in now:
                row[4] = True
    expected = {}
    for t in range(len(past) - rows, len(past) - n_step + 1):
        for copy in range(copies):
            total, discount = 0.0, 1.0
            for k in range(n_step):
                _, reward, after, terminated, stops = past[t + k][copy]
                total, discount = total + discount * reward, discount * gamma
                if stops:
                    break
            expected[past[t][copy][0]] = (total, after, 0 if terminated else discount)
    assert outcomes(replay, 4000) == expected
    assert len(replay) == len(expected)


# --- size and sampling


@pytest.mark.parametrize("n_step", [1, 3])
def test_length_counts_what_can_be_sampled(n_step):
    replay, lengths = Replay(9, torch.zeros(2, 1), n_step=n_step, gamma=1.0, perturbations=False), []  # 4 rows
    for _ in range(6):
        lengths.append(len(replay))
        add(replay, torch.zeros(2, 1), torch.zeros(2), torch.zeros(2, 1))
    assert lengths == ([0, 2, 4, 6, 8, 8] if n_step == 1 else [0, 0, 0, 2, 4, 4])


def test_a_memory_smaller_than_the_sum_holds_one():
    replay = Replay(1, torch.zeros(2, 1), n_step=3, gamma=1.0, perturbations=False)
    for _ in range(4):
        add(replay, torch.zeros(2, 1), torch.ones(2), torch.zeros(2, 1))
    assert len(replay) == 2
    assert replay.sample(4, seeded()).rewards.tolist() == [3] * 4


@pytest.mark.parametrize("added", [5, 8, 11])  # filling, full, wrapped around
def test_transitions_are_drawn_uniformly(added):
    rows, copies, n_step = 8, 3, 2
    replay = memory(rows, copies, n_step=n_step)
    for t in range(added):
        add(replay, copies * t + torch.arange(3.0).view(3, 1), torch.zeros(3), torch.zeros(3, 1))
    drawn = replay.sample(20_000, seeded(4)).obs.flatten().long()
    counts = torch.bincount(drawn, minlength=added * copies)[max(added - rows, 0) * copies : (added - 1) * copies]
    assert counts.sum() == 20_000
    assert len(counts) == len(replay)
    assert chisquare(counts.numpy()).pvalue > 0.01


def test_a_draw_follows_from_its_generator():
    replay = memory(50)
    story(replay, range(50))
    first, again, other = (replay.sample(20, seeded(seed)).obs for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_moves_that_were_not_the_agents_have_no_weight():
    replay = memory(2, 2)
    for t in (0, 1):
        add(
            replay,
            torch.tensor([[t + 0.0], [t + 10.0]]),
            torch.zeros(2),
            torch.zeros(2, 1),
            playing=flags(t == 0, True),
        )
    batch = replay.sample(200, seeded())
    own = batch.obs.flatten() != 1
    assert 0 < own.sum() < 200
    assert (batch.weights[~own] == 0).all()
    torch.testing.assert_close(batch.weights[own], torch.full((int(own.sum()),), 1 / int(own.sum())))
    assert batch.weights.sum().item() == pytest.approx(1)
    nobody = memory(1)
    add(nobody, torch.zeros(1, 1), torch.zeros(1), torch.zeros(1, 1), playing=flags(False))
    assert nobody.sample(3, seeded()).weights.tolist() == [0, 0, 0]  # and not NaN


# --- perturbations in bytes

budgets = st.one_of(
    st.sampled_from([0.0, 1e-6, 0.1 / 255, 0.7 / 255, 1 / 255, 3 / 255, 25 / 255, 1.0]), st.floats(0, 1)
)


def through_memory(obs, seen, budget):
    replay = memory(1, len(obs), perturbations=True, shape=obs.shape[1:], dtype=obs.dtype)
    actions = torch.arange(len(obs))
    add(replay, obs, torch.zeros(len(obs)), obs, seen=seen, budget=budget, actions=actions)
    batch = replay.sample(300, seeded())
    assert set(batch.actions.tolist()) == set(actions.tolist())
    return batch


@given(budget=budgets, seed=st.integers(0, 2**30), image=st.booleans())
@example(budget=0.1 / 255, seed=0, image=True)
@example(budget=0.12505, seed=0, image=True)
def test_perturbations_stay_where_they_may_be(budget, seed, image):
    generator = seeded(seed)
    obs = torch.randint(256, (4, 1, 6, 6), dtype=torch.uint8, generator=generator)
    clean = obs / 255 if image else 2 * torch.rand(4, 1, 6, 6, generator=generator) - 1
    low, high = (0, 1) if image else (-1, 1)
    offset = budget * (2 * torch.rand(clean.shape, generator=generator) - 1)
    seen = (clean + offset).clamp(low, high)  # of a good part of the images the box cuts something off
    batch = through_memory(obs if image else clean, seen, budget)
    clean, seen = clean[batch.actions], seen[batch.actions]
    assert torch.equal(batch.obs, clean)
    assert (batch.seen - clean).abs().max() <= budget + FLOATS
    assert low - FLOATS <= batch.seen.min()
    assert batch.seen.max() <= high + FLOATS
    assert (batch.seen - seen).abs().max() <= budget / LEVELS + FLOATS
    assert ((batch.seen - clean).abs() <= (seen - clean).abs() + FLOATS).all()  # towards the clean observation
    if budget == 0:
        assert torch.equal(batch.seen, batch.obs)


@given(budget=budgets, seed=st.integers(0, 2**30), image=st.booleans())
@example(budget=0.5 / 255, seed=0, image=True)
def test_corners_are_kept(budget, seed, image):
    generator = seeded(seed)
    obs = torch.randint(256, (4, 1, 6, 6), dtype=torch.uint8, generator=generator)
    clean = obs / 255 if image else 2 * torch.rand(4, 1, 6, 6, generator=generator) - 1
    sign = torch.randint(2, clean.shape, generator=generator) * 2 - 1
    batch = through_memory(obs if image else clean, clean + sign * torch.tensor(budget), budget)
    corner = (clean + sign * torch.tensor(budget))[batch.actions]
    assert (batch.seen - corner).abs().max() <= FLOATS


def test_levels_by_hand():
    budget = torch.tensor(0.254)  # 0.002 per level
    given = torch.tensor([[0.254, -0.254, 0.0, 0.0199, -0.0199, 0.0021, 0.0019]])
    packed = pack(given, budget)
    assert packed.dtype == torch.int8
    assert packed.tolist() == [[127, -127, 0, 9, -9, 1, 0]]
    torch.testing.assert_close(unpack(packed, budget.view(1)), 0.002 * packed)


def test_each_transition_keeps_the_budget_of_its_time():
    replay = memory(3, perturbations=True)
    for t, budget in enumerate([0.1, 0.2, 0.4]):
        add(
            replay,
            torch.tensor([[t + 0.0]]),
            torch.zeros(1),
            torch.zeros(1, 1),
            seen=torch.tensor([[t - budget]]),
            budget=budget,
        )
    batch = replay.sample(100, seeded())
    torch.testing.assert_close(batch.obs - batch.seen, torch.tensor([0.1, 0.2, 0.4])[batch.obs.long()])


# --- checkpoints and memory


@pytest.mark.parametrize("added", [3, 5, 12])  # filling, full, wrapped around
def test_a_restored_memory_goes_on_alike(added):
    def step(replay, t):
        obs = torch.tensor([[t + 0.0], [t + 100.0]])
        ends = {"terminated": flags(t % 3 == 0, False), "truncated": flags(False, t % 4 == 0)}
        seen, playing = obs + 0.1 * (-1) ** t, flags(t % 2 == 0, True)
        add(replay, obs, obs.flatten() / 7, obs + 0.5, seen=seen, budget=0.1 + t / 100, playing=playing, **ends)

    whole, again = (memory(5, 2, n_step=2, perturbations=True) for _ in range(2))
    for t in range(added):
        step(whole, t)
    file = io.BytesIO()
    torch.save(whole.state(), file)
    file.seek(0)
    again.restore(torch.load(file, weights_only=True))
    generators = seeded(3), seeded(3)
    for t in range(added, added + 8):
        batches = [replay.sample(50, g) for replay, g in zip((whole, again), generators, strict=True)]
        assert all(torch.equal(*pair) for pair in zip(*(vars(batch).values() for batch in batches), strict=True))
        assert len(whole) == len(again)
        step(whole, t)
        step(again, t)


@pytest.mark.parametrize(("capacity", "perturbations", "images"), [(50_000, True, 3), (200_000, False, 2)])
def test_the_papers_memories_fit_a_gpu(capacity, perturbations, images):
    like = torch.zeros(8, 1, 84, 84, dtype=torch.uint8)
    held = [Replay(n, like, n_step=1, gamma=0.99, perturbations=perturbations).nbytes for n in (160, 80)]
    per_transition = (held[0] - held[1]) / 80
    assert images * 84 * 84 <= per_transition <= images * 84 * 84 + 64  # images are bytes, perturbations too
    assert capacity * per_transition < 4e9
