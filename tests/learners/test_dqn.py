"""The DQN learner on a chain of five states: counts, schedules, values worked out by hand, seeds and checkpoints."""

import io
import math
from fractions import Fraction
from itertools import groupby

import pytest
import torch

from bcl import losses
from bcl.config import AttackConfig
from bcl.envs import Step
from bcl.errors import TrainingError
from bcl.learners.dqn import Player, train
from bcl.learners.learner import HeldActions
from bcl.learners.metrics import Meter
from tests.learners.told import Told

every_form = pytest.mark.parametrize(
    ("loss", "form"),
    [
        ("standard", {}),
        ("at", {}),
        ("at", {"attack": AttackConfig(fresh=True)}),
        ("at", {"attack": AttackConfig(kind="pgd", steps=2, objective="margin")}),
        *(("radial", {"radial_approach": approach}) for approach in ("1", "1-reference", "2")),
        ("sa", {}),
    ],
)


def weights(module):
    return [parameter.detach().clone() for parameter in module.parameters()]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def updates(learner):
    return int(next(iter(learner.optimizer.state.values()))["step"]) if learner.optimizer.state else 0


def run(learner, state=None, **told):
    return train(learner.policy, learner.env, learner.config, learner.adversary, learner.task, Told(**told), state)


def from_file(state):
    """What a checkpoint file gives back."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def untimed(rows):
    return [{k: v for k, v in row.items() if k != "steps_per_second" and not k.startswith("share_")} for row in rows]


# --- when


@pytest.mark.parametrize(
    ("num_envs", "batch_size", "samples_per_step", "replay_initial", "n_step"),
    [(4, 8, 8.0, 16, 1), (3, 8, 1.0, 10, 1), (16, 4, 1.0, 16, 1), (1, 32, 12.5, 5, 1), (7, 5, 0.25, 0, 1), (4, 8, 2.0, 16, 3)],
)  # fmt: skip
def test_updates_follow_from_the_samples_per_step(
    make, play, num_envs, batch_size, samples_per_step, replay_initial, n_step
):
    settings = {"num_envs": num_envs, "batch_size": batch_size, "samples_per_step": samples_per_step, "n_step": n_step}
    learner = make(replay_initial=replay_initial, buffer_size=200, **settings)
    obs, owed, logged = None, Fraction(0), 0
    for vector_step in range(30):
        obs = play(learner, 1, obs)
        if (vector_step - n_step + 1) * num_envs >= max(replay_initial, 1):  # transitions there when it was due
            owed += num_envs * Fraction(samples_per_step) / batch_size
        logged += learner.metrics()["updates"]
        assert logged == updates(learner) in {math.floor(owed), math.floor(owed - Fraction(1, 10**9))}  # floats count
    assert logged > 0
    assert learner.step == 30 * num_envs


def test_a_memory_too_small_for_what_is_collected_first_starts_when_full(make, play):
    learner = make(buffer_size=30, replay_initial=30, num_envs=8, batch_size=16)  # 3 whole vector steps fit
    play(learner, 5)
    assert updates(learner) == 2


def test_the_games_go_on_while_the_learner_works(make, monkeypatch):
    learner, said = make(replay_initial=8, samples_per_step=4.0, batch_size=8, steps=24), []

    def listen(where, name):
        real = getattr(where, name)
        monkeypatch.setattr(where, name, lambda *given: said.append(name) or real(*given))

    listen(learner.env, "send")
    listen(learner.env, "recv")
    listen(losses, "standard")
    run(learner)
    assert said == ["send", "recv"] * 2 + ["send", "standard", "standard", "recv"] * 4


def test_the_target_network_copies_at_its_steps(make, play):
    learner = make(target_sync=24)
    obs, copied = None, []
    for _ in range(25):
        before = weights(learner.target)
        obs = play(learner, 1, obs)
        if not same(before, weights(learner.target)):
            assert same(weights(learner.target), weights(learner.policy))
            copied.append(learner.step)
    assert copied == [24, 48, 72, 96]
    assert not same(weights(learner.target), weights(learner.policy))


def test_soft_rates_compose(make, play):
    learner = make(target_sync=2, target_rate=0.3, num_envs=8)
    obs = play(learner, 5)
    before = weights(learner.target)
    play(learner, 1, obs)
    for old, new, now in zip(before, weights(learner.policy), weights(learner.target), strict=True):
        expected = old
        for _ in range(4):  # of the target's updates fall into 8 steps
            expected = expected + 0.3 * (new - expected)
        assert not torch.equal(old, now)
        torch.testing.assert_close(now, expected)


# --- acting


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_exploration_reaches_the_actions(make, share):
    learner = make(num_envs=4000, exploration_start=share, exploration_end=share)
    obs = learner.restart()
    with torch.no_grad():
        greedy = learner.policy(obs).argmax(dim=1)
    other = (learner.play(obs)[0] != greedy).float().mean().item()
    assert other == pytest.approx(share / 2, abs=0.03 * share)  # half of the random actions are the greedy one


def test_actions_come_from_the_weights_of_one_pass_ago(make):
    learner = make(exploration_start=0.0, exploration_end=0.0)
    obs = learner.restart()

    def plays():
        learner.env._sent = None
        return learner.play(obs)[0]

    before = plays()
    with torch.no_grad():
        learner.policy.network.advantage[-1].weight.neg_()
        learner.policy.network.advantage[-1].bias.neg_()
    assert torch.equal(plays(), before)
    learner.update()
    assert torch.equal(plays(), 1 - before)


def test_schedules_follow_the_step(make):
    learner = make("at", start=0.1, end=0.3, kappa=0.5, kappa_linear=True, ramp_start=10, ramp_steps=110,
                   exploration_start=1.0, exploration_end=0.2, exploration_hold=60, exploration_steps=200)  # fmt: skip
    rows = []
    for learner.step in (0, 64, 160, 360):
        learner.set_schedules()
        rows.append(learner.metrics())
    assert [row["eps"] for row in rows] == pytest.approx([0.1, 0.2, 0.3, 0.3])  # 55/110 of the way at 64
    assert [row["kappa"] for row in rows] == pytest.approx([1, 0.75, 0.5, 0.5])
    assert [row["exploration"] for row in rows] == pytest.approx([1, 0.984, 0.6, 0.2])
    learner = make("at", start=0.1, end=0.3, replay_initial=10, ramp_steps=110)
    learner.step = 64
    learner.set_schedules()
    assert learner.metrics()["eps"] == pytest.approx(0.2)  # without a start of its own, after what is collected first


# --- rewards and values


def test_rewards_are_scaled_then_clamped(make, play):
    for clamp, expected in ((1.0, {0, 0.25, 1, -1}), (0, {0, 0.25, 1.5, -4, 3})):
        world = {"rewards": (0.5, 3, -8, 0, 6), "steers": False}
        learner = make(world=world, reward_scale=0.5, reward_clamp=clamp)
        play(learner, 16)
        assert set(learner.replay.sample(500, torch.Generator().manual_seed(0)).rewards.tolist()) == expected


def test_returns_are_raw_and_of_whole_episodes(make, play):
    learner = make(world={"rewards": [1] * 5, "steers": False, "limits": (3, 0)}, reward_scale=0.1, reward_clamp=0.01)
    ended, recv = [], learner.env.recv

    def spy():
        step = recv()
        ended.append(int((step.terminated | step.truncated).sum()))
        return step

    learner.env.recv = spy
    obs, before = None, 0
    for vector_steps in (7, 1, 30):  # episodes reach over the rows
        ended.clear()
        obs = play(learner, vector_steps, obs)
        row, unfinished = learner.metrics(), int(learner.env._time.sum())
        assert row["episodes"] == sum(ended)
        paid = 4 * vector_steps + before - unfinished  # 1 per step
        assert row["return"] == (pytest.approx(paid / sum(ended)) if sum(ended) else None)
        before = unfinished


def test_the_target_is_the_delayed_value_of_the_newest_choice(make, play, monkeypatch):
    learner, goals, real = make(hidden=(32, 32), n_step=2, target_sync=10**6, samples_per_step=2.0), [], losses.standard
    play(learner, 20)  # the networks differ by now
    for parameter in learner.target.parameters():
        parameter.neg_()  # and do not agree in much
    generator = torch.Generator()
    generator.set_state(learner.generators["update"].get_state())
    batch = learner.replay.sample(8, generator)
    with torch.no_grad():
        choice, values = learner.policy(batch.next_obs).argmax(dim=1).tolist(), learner.target(batch.next_obs)
    rows = zip(batch.rewards.tolist(), batch.discounts.tolist(), values.tolist(), choice, strict=True)
    expected = [reward + discount * value[best] for reward, discount, value, best in rows]
    assert choice != values.argmax(dim=1).tolist()
    monkeypatch.setattr(losses, "standard", lambda *given: goals.append(given[1].target) or real(*given))
    learner.update()
    assert goals[0].tolist() == pytest.approx(expected, abs=1e-6)


# gamma = 1/2. Right pays only out of state 4: 1, 1/2, 1/4, ... backwards; left gives half of the best one step back.
STEERED = [[1 / 32, 1 / 16], [1 / 32, 1 / 8], [1 / 16, 1 / 4], [1 / 8, 1 / 2], [1 / 4, 1]]
# No choice, rewards 1, 0, -2, 0, 1: 1; 0 + 1/2; -2 + 1/4; 0 - 7/8; 1 - 7/16.
PATH = [[9 / 16] * 2, [-7 / 8] * 2, [-7 / 4] * 2, [1 / 2] * 2, [1] * 2]


@pytest.mark.parametrize(
    ("n_step", "world", "expected"),
    [
        (1, {"limits": (0, 2, 3)}, STEERED),
        (1, {"limits": (0, 2, 3), "steers": False, "rewards": (1, 0, -2, 0, 1)}, PATH),
        (3, {"limits": (0, 2, 3), "steers": False, "rewards": (1, 0, -2, 0, 1)}, PATH),
    ],
)
def test_values_by_hand_past_limits_but_not_past_ends(make, n_step, world, expected):
    learner = make(steps=768, num_envs=12, batch_size=64, samples_per_step=16, learning_rate=0.05, learning_rate_end=0.01,
                   buffer_size=1200, target_sync=60, exploration_start=1.0, exploration_end=1.0, n_step=n_step, hidden=(32,),
                   world=world)  # fmt: skip
    policy = run(learner)
    with torch.no_grad():
        torch.testing.assert_close(policy(torch.eye(5)), torch.tensor(expected), rtol=0, atol=0.02)


# --- every loss


@every_form
def test_every_form_trains_every_weight(make, play, loss, form):
    learner = make(loss, start=0.05, end=0.1, hidden=(6, 8), **form)
    before = weights(learner.policy)
    play(learner, 20)
    for old, parameter in zip(before, learner.policy.parameters(), strict=True):
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert not torch.equal(old, parameter)
        assert parameter.isfinite().all()


# --- seeds and checkpoints


@every_form
def test_a_run_follows_from_its_seed(make, loss, form):
    def final(seed):
        rows, untouched = [], torch.get_rng_state()
        policy = run(make(loss, seed=seed, steps=60, log_steps=20, **form), log=rows.append)
        assert torch.equal(torch.get_rng_state(), untouched)
        return weights(policy), untimed(rows)

    first, again, other = final(1), final(1), final(2)
    assert same(first[0], again[0])
    assert first[1] == again[1]
    assert not same(first[0], other[0])


@pytest.mark.parametrize(("loss", "n_step"), [("standard", 1), ("standard", 3), ("radial", 1), ("at", 2), ("sa", 1)])
def test_a_checkpoint_goes_on_bit_for_bit(make, loss, n_step):
    settings = {"steps": 120, "checkpoint_steps": 40, "checkpoint_replay": True, "n_step": n_step, "buffer_size": 72}
    settings |= {"samples_per_step": 1.5, "target_rate": 0.5, "kappa_linear": True, "world": {"limits": (0, 5)}}
    settings |= {"exploration_end": 0.1, "exploration_steps": 100, "learning_rate_end": 0.1, "end": 0.2}
    states, rows = [], []
    whole = run(make(loss, **settings), save=lambda state: states.append(from_file(state)), log=rows.append)
    assert [state["step"] for state in states] == [40, 80]  # before and after the memory is full
    for state in states:
        again, kept = [], []
        learner = make(loss, weights=7, **settings)  # whatever it starts from
        policy = run(learner, state, log=again.append, save=kept.append)  # checkpoints start the games anew
        assert same(weights(policy), weights(whole))
        assert untimed(again) == [row for row in untimed(rows) if row["step"] > state["step"]]


def test_returns_are_told_with_their_deviation():
    meter, over = Meter(4, torch.device("cpu")), torch.tensor([True, True, True, False])
    obs, none = torch.zeros(4, 1), torch.zeros(4, dtype=torch.bool)
    assert meter.row(0, {})["return_sd"] is None
    meter.count(Step(obs, torch.tensor([1.0, 2.0, 6.0, 99.0]), over, none, ~none, obs[over]))
    row = meter.row(4, {})
    assert (row["return"], row["return_sd"]) == (3, pytest.approx((14 / 3) ** 0.5))  # 4 + 1 + 9 over 3 episodes


def test_nothing_reaches_over_a_restart(make, play):
    learner = make(n_step=3, world={"rewards": [1] * 5, "steers": False}, num_envs=20, buffer_size=200, steps=4000)
    for _ in range(3):
        play(learner, 1)
    assert learner.replay.sample(50, torch.Generator().manual_seed(0)).rewards.tolist() == [1] * 50
    row = learner.metrics()
    assert (row["return"], row["episodes"] > 0) == (1, True)  # only episodes of one step were seen to their end


def test_without_its_memory_a_checkpoint_collects_first(make, play):
    learner = make(checkpoint_replay=False)
    play(learner, 10)
    state = from_file(learner.state())
    assert state["replay"] is None
    again = make(weights=7)
    again.restore(state)
    assert again.step == 40
    before = updates(again)
    play(again, 4)
    assert updates(again) == before == updates(learner) > 0
    play(again, 2)
    assert updates(again) > before


# --- speaking


@pytest.mark.parametrize(
    ("loss", "more"), [("standard", set()), ("radial", {"robust", "certified"}), ("at", {"robust", "fooled"}), ("sa", {"robust", "certified"})]
)  # fmt: skip
def test_rows_of_metrics(make, loss, more):
    rows, progress = [], []
    run(make(loss, steps=120, log_steps=8), log=rows.append, progress=lambda *given: progress.append(given))
    assert [row["step"] for row in rows] == list(range(8, 121, 8))
    assert progress == [(step, 120) for step in range(4, 121, 4)]
    always = {"step", "return", "return_sd", "episodes", "eps", "kappa", "exploration", "updates", "steps_per_second"}
    shares = {"share_act", "share_env"} | ({"share_attack"} if loss == "at" else set())
    assert set(rows[0]) == always | shares  # nothing was learned yet
    assert set(rows[-1]) == always | shares | {"share_update", "td", "q", "loss"} | more
    of_episodes = {"return", "return_sd"}
    assert all(
        isinstance(value, int | float) or (value is None and key in of_episodes) for key, value in rows[-1].items()
    )
    assert all(0 < row[name] < 1 for row in rows for name in row if name.startswith("share_"))
    assert rows[-1]["steps_per_second"] > 0
    assert (rows[-1]["eps"] > 0) == (loss != "standard")


def test_rows_come_at_multiples_whatever_was_resumed(make):
    states, rows, again = [], [], []
    settings = {"steps": 60, "log_steps": 18, "checkpoint_steps": 24, "checkpoint_replay": True}
    run(make(**settings), log=rows.append, save=lambda state: states.append(from_file(state)))
    assert [row["step"] for row in rows] == [20, 36, 56, 60]  # the first steps from 18, 36 and 54 on, and the last
    run(make(**settings), states[0], log=again.append)
    assert [row["step"] for row in again] == [36, 56, 60]


def test_losses_in_a_row_are_means_over_its_updates(make, play, monkeypatch):
    learner, seen, standard = make(samples_per_step=4.0, batch_size=8), [], losses.standard

    def spy(*given):
        seen.append(standard(*given)[1]["td"].item())
        return standard(*given)

    monkeypatch.setattr(losses, "standard", spy)
    obs = None
    for _ in range(3):
        seen.clear()
        obs = play(learner, 8, obs)
        assert learner.metrics()["td"] == pytest.approx(sum(seen) / len(seen))
        assert len(seen) > 1


@pytest.mark.parametrize(("when", "starts"), [({"checkpoint_steps": 16}, 4), ({"checkpoint_minutes": 1e-9}, 1)])
def test_checkpoints_by_time_do_not_cut_off_episodes(make, monkeypatch, when, starts):
    learner, seeds, kept = make(steps=64, **when), [], []
    reset = learner.env.reset
    monkeypatch.setattr(learner.env, "reset", lambda seed: (seeds.append(seed), reset(seed))[1])
    run(learner, save=kept.append)
    assert len(kept) >= 3
    assert len(seeds) == starts


def test_a_stop_saves_first(make):
    asked, states = [], []
    learner = make(steps=200)

    def interrupted():
        asked.append(None)
        return len(asked) == 7

    with pytest.raises(KeyboardInterrupt):
        run(learner, stop=interrupted, save=lambda state: states.append(state["step"]))
    assert states == [28]
    with pytest.raises(KeyboardInterrupt):
        run(make(steps=200), stop=lambda: True)  # nobody keeps checkpoints


@pytest.mark.parametrize("reward", [math.nan, math.inf, 1e30])
def test_divergence_is_refused(make, play, reward):
    world = {"rewards": [reward] * 5, "steers": False}
    with pytest.raises(TrainingError, match=r"diverged before step 40 .*learning_rate") as caught:
        run(make(world=world))
    assert "\n" not in str(caught.value)
    learner = make(world=world)
    play(learner, 30)
    if reward != 1e30:  # whose gradient is 1
        with pytest.raises(TrainingError, match="largest weight"):
            learner.state()  # no checkpoint of it either


def test_random_actions_are_held(chain):
    env = chain(200)
    env.num_actions = 10**6  # so that every new action differs
    policy, sent = torch.nn.Linear(5, 2), []
    env.send = lambda actions: sent.append(actions.clone())
    random = HeldActions(env.num_envs, env.num_actions, 4, torch.Generator().manual_seed(0))
    player = Player(policy, env, random, graphed=False, bf16=False, attacked=False)
    obs = player.reset(0)
    for _ in range(300):
        player.play(obs, 1.0)
    lengths = torch.tensor([len(list(run)) for copy in torch.stack(sent[:-3]).T.tolist() for _, run in groupby(copy)])
    # n or more with probability 1/n: 1/2, 1/6, 1/12 and what is left.
    shares = torch.bincount(lengths, minlength=5)[1:] / len(lengths)
    torch.testing.assert_close(shares, torch.tensor([1 / 2, 1 / 6, 1 / 12, 1 / 4]), rtol=0, atol=0.01)
    held = player.play(obs, 0.0)
    assert 0 < (held > 1).sum() < 200  # those that are still held; the others are greedy
    player.reset(0)
    assert torch.equal(player.play(obs, 0.0), policy(obs).argmax(dim=1))  # a restart lets go
