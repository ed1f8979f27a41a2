"""The PPO learner on a chain of five states: what it plays, counts and learns; seeds, checkpoints, rows."""

import io
import json
import math

import pytest
import torch

from bcl import losses
from bcl.config import AttackConfig, PpoConfig
from bcl.errors import ConfigError, TrainingError, WeightsError
from bcl.learners import ppo
from bcl.learners.ppo import ReturnScale
from tests.learners.told import Told

every_loss = pytest.mark.parametrize("loss", ["standard", "radial", "at"])


def weights(module):
    return [parameter.detach().clone() for parameter in module.parameters()]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def run(learner, state=None, **told):
    return ppo.train(learner.policy, learner.env, learner.config, learner.adversary, learner.task, Told(**told), state)


def from_file(state):
    """What a checkpoint file gives back."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def untimed(rows):
    return [{k: v for k, v in row.items() if k != "steps_per_second" and not k.startswith("share_")} for row in rows]


def recorded(learner):
    """Every vector step of the environment from here on."""
    steps, recv = [], learner.env.recv
    learner.env.recv = lambda: steps.append(recv()) or steps[-1]
    return steps


# --- playing


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_actions_are_drawn_from_the_policy(make_ppo, temperature):
    learner = make_ppo(num_envs=40_000, rollout=1, batch_size=40_000, temperature=temperature)
    with torch.no_grad():
        learner.policy.network.logits.bias.copy_(torch.tensor([1.0, 0.0]))
        learner.policy.network.logits.weight.zero_()
    rollout, _ = learner.rollout(learner.restart())
    share = 1 / (1 + math.exp(-1 / temperature))
    assert (rollout.actions == 0).float().mean().item() == pytest.approx(share, abs=0.01)
    expected = torch.where(rollout.actions == 0, math.log(share), math.log(1 - share))
    torch.testing.assert_close(rollout.log_probs, expected)


def test_a_rollout_is_what_was_played(make_ppo):
    learner = make_ppo(world={"limits": (0, 3), "rewards": (1, 2, 3, 4, 5), "steers": False}, reward_clamp=4.0)
    steps, first = recorded(learner), learner.restart()
    rollout, obs = learner.rollout(first)
    seen = [first, *(step.obs for step in steps)]
    assert torch.equal(obs, seen[-1])
    assert torch.equal(rollout.obs, torch.stack(seen[:-1]))
    assert torch.equal(rollout.rewards, torch.stack([step.reward for step in steps]).clamp(max=4))
    assert torch.equal(rollout.terminated, torch.stack([step.terminated for step in steps]))
    assert torch.equal(rollout.ended, torch.stack([step.ended for step in steps]))
    assert rollout.playing.all()
    assert learner.step == 40
    network = learner.policy.network
    with torch.no_grad():
        logits, values = network.logits_and_value(rollout.obs.flatten(0, 1))
    torch.testing.assert_close(rollout.values.flatten(), values)
    log_probs = logits.log_softmax(dim=1)[torch.arange(40), rollout.actions.flatten()]
    torch.testing.assert_close(rollout.log_probs.flatten(), log_probs)
    truncated = 0
    for t, step in enumerate(steps):
        last = iter(step.final_obs)
        for copy in range(4):
            after = next(last) if step.ended[copy] else step.obs[copy]
            with torch.no_grad():
                expected = network.logits_and_value(after.unsqueeze(0))[1].item()
            assert rollout.next_values[t, copy].item() == pytest.approx(expected, abs=1e-6)
            truncated += bool(step.truncated[copy])
    assert truncated > 2
    assert rollout.terminated.sum() > 2


def test_advantages_of_a_rollout(make_ppo):
    learner = make_ppo(world={"limits": (0, 3), "rewards": (1, 2, 3, 4, 5)}, epochs=1, learning_rate=1e-9)
    rollout, _ = learner.rollout(learner.restart())
    learner.update(rollout)
    r, v, after = rollout.rewards.tolist(), rollout.values.tolist(), rollout.next_values.tolist()
    raw = torch.zeros(10, 4, dtype=torch.float64)
    for copy in range(4):
        carried = 0.0
        for t in reversed(range(10)):
            future = 0.0 if rollout.terminated[t, copy] else 0.5 * after[t][copy]
            carried = r[t][copy] + future - v[t][copy] + (0.0 if rollout.ended[t, copy] else 0.375 * carried)
            raw[t, copy] = carried
    torch.testing.assert_close(rollout.targets.double(), raw + rollout.values, rtol=0, atol=1e-5)
    expected = (raw - raw.mean()) / raw.std(correction=0)
    torch.testing.assert_close(rollout.advantages.double(), expected, rtol=0, atol=1e-5)


def test_moves_of_the_game_are_not_learned_from(make_ppo):
    learner, past = make_ppo(epochs=1), []
    recv = learner.env.recv

    def scripted():
        step = recv()
        step.playing[::2] = False
        return step

    learner.env.recv = scripted
    learner._objective = lambda *given: past.append(given[2]) or losses.ppo(*given)
    rollout, _ = learner.rollout(learner.restart())
    learner.update(rollout)
    assert rollout.playing[:, 1::2].all()
    assert not rollout.playing[:, ::2].any()
    assert len(past) == 5
    for batch in past:
        assert batch.weight.sum().item() == pytest.approx(1)
        assert batch.weight.unique().numel() == 2  # 0 and an equal share
    played = rollout.advantages[:, 1::2]
    assert played.mean().item() == pytest.approx(0, abs=1e-6)
    assert played.std(correction=0).item() == pytest.approx(1, abs=1e-5)


def test_random_actions_take_the_place_of_drawn_ones_and_fade(make_ppo):
    learner = make_ppo(
        num_envs=400, batch_size=400, exploration_start=0.5, exploration_steps=1600, exploration_repeat=3
    )
    with torch.no_grad():
        learner.policy.network.logits.bias.copy_(torch.tensor([50.0, 0.0]))  # it never takes the second action
    assert learner.exploration == 0.5
    rollout, _ = learner.rollout(learner.restart())
    other = (rollout.actions == 1).float().mean(dim=1)
    assert other[0].item() == pytest.approx(0.25, abs=0.08)  # half of them begin one, of two actions
    assert other[-1].item() == pytest.approx(0.32, abs=0.08)  # more, since they are held for 1.83 steps in the mean
    logits = learner.policy(rollout.obs.flatten(0, 1)).detach()
    drawn_so = logits.log_softmax(dim=1).gather(1, rollout.actions.view(-1, 1)).flatten()
    torch.testing.assert_close(rollout.log_probs.flatten(), drawn_so)
    assert learner.exploration == 0.0
    rollout, _ = learner.rollout(learner.restart())
    assert (rollout.actions == 0).all()


# --- updating


@every_loss
def test_before_its_first_update_the_policy_that_learns_is_the_one_that_acted(make_ppo, loss):
    learner, ratios = make_ppo(loss, start=0.0, end=1e-9, temperature=0.5, epochs=1, learning_rate=1e-9), []

    def objective(logits, values, *given):
        past = next(one for one in given if isinstance(one, losses.Past))
        ratios.append(logits.log_softmax(dim=1).gather(1, past.actions.unsqueeze(1)).squeeze(1) - past.log_probs)
        return losses.ppo(logits, values, past, losses.LossWeights(0.2, 0.5, 0.01))

    learner._objective = objective
    rollout, _ = learner.rollout(learner.restart())
    learner.update(rollout)
    assert torch.cat(ratios).abs().max().item() < 1e-5


def test_every_pass_takes_every_sample_once_and_in_another_order(make_ppo, monkeypatch):
    orders, step = [], ppo.PpoLearner._take_gradient_step
    listen = lambda self: orders.append(self._order[self._batch].tolist()) or step(self)  # noqa: E731
    monkeypatch.setattr(ppo.PpoLearner, "_take_gradient_step", listen)
    learner = make_ppo(epochs=3, batch_size=20)
    rollout, obs = learner.rollout(learner.restart())
    learner.update(rollout)
    passes = [orders[i] + orders[i + 1] for i in range(0, 6, 2)]
    assert [sorted(samples) for samples in passes] == [list(range(40))] * 3
    assert len({tuple(samples) for samples in passes}) == 3
    assert learner.updates == 6
    learner.update(learner.rollout(obs)[0])
    assert learner.updates == 12
    assert learner.metrics()["updates"] == 12


def test_the_first_update_starts_from_ratios_of_one(make_ppo):
    learner = make_ppo(epochs=1, batch_size=40)
    rollout, _ = learner.rollout(learner.restart())
    learner.update(rollout)
    row = learner.metrics()
    assert row["kl"] == pytest.approx(0, abs=1e-6)
    assert row["surrogate"] == pytest.approx(-rollout.advantages.mean().item(), abs=1e-6)


def test_gradients_are_clipped(make_ppo):
    learner = make_ppo(epochs=1, batch_size=40, max_grad_norm=1e-3, world={"rewards": [5] * 5})
    learner.update(learner.rollout(learner.restart())[0])
    norm = torch.stack([p.grad.norm() for p in learner.policy.parameters()]).norm().item()
    assert norm == pytest.approx(1e-3, rel=1e-3)


def test_step_sizes_fall_as_asked():
    config = PpoConfig(steps=1000, learning_rate=0.5, learning_rate_end=0.1)
    assert [ppo.learning_rate(config, step) for step in (0, 500, 1000, 1200)] == pytest.approx([0.5, 0.275, 0.05, 0.05])
    assert ppo.learning_rate(PpoConfig(steps=1000), 900) == 5e-4


def test_budgets_of_the_papers_run(make_ppo):
    paper = {name: getattr(PpoConfig(), name) for name in ("steps", "epochs", "batch_size", "ramp")}
    learner = make_ppo("at", end=3.92e-3, num_envs=4, rollout=128, **paper)
    found = []
    for learner.updates in (0, 20_000, 35_000, 60_000, 100_000, 117_187, 146_000):
        found.append(learner.eps)
    assert found == pytest.approx([1e-10, 1.7701e-9, 5.5687e-6, 1.07566e-3, 3.06516e-3, 3.92e-3, 3.92e-3], rel=2e-5)
    assert make_ppo("standard", end=0.5).eps == 0


def test_each_update_has_its_own_budget(make_ppo, monkeypatch):
    learner, seen = make_ppo("radial", end=0.4, steps=80, ramp_start=0.25, ramp_end=0.75), []
    box = ppo.input_box
    monkeypatch.setattr(ppo, "input_box", lambda obs, eps, *given: seen.append(eps.item()) or box(obs, eps, *given))
    run(learner)
    # 20 updates; linear from the 5th to the 15th, divided by the end as in schedules
    expected = [0.4 * min(1, max(0, (n - 5 + 1) / 15)) for n in range(20)]
    assert seen == pytest.approx(expected)


# --- learning


@every_loss
def test_values_and_choices_by_hand_past_limits_but_not_past_ends(make_ppo, loss):
    """Right pays only out of state 4: worth 1, 1/2, 1/4, ... backwards at gamma 1/2."""
    learner = make_ppo(
        loss, end=0.01, steps=9_600, num_envs=16, rollout=12, epochs=6, batch_size=64, learning_rate=0.01,
        learning_rate_end=0.02, hidden=(32,), entropy_coef=0.0, world={"limits": (0, 2, 3)}, clip=0.3,
    )  # fmt: skip
    policy = run(learner)
    with torch.no_grad():
        logits, values = policy.network.logits_and_value(torch.eye(5))
    assert (logits.softmax(dim=1)[:, 1] > 0.9).all()
    torch.testing.assert_close(values, torch.tensor([1 / 16, 1 / 8, 1 / 4, 1 / 2, 1]), rtol=0, atol=0.06)


@every_loss
@pytest.mark.parametrize("world", [{}, {"image": True}])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_form_trains_every_weight(make_ppo, loss, world, precision):
    learner = make_ppo(
        loss, start=0.05, hidden=(6, 8), world=world, precision=precision, steps=16, num_envs=2, rollout=4
    )
    before = weights(learner.policy)
    run(learner)
    for old, parameter in zip(before, learner.policy.parameters(), strict=True):
        assert parameter.isfinite().all()
        assert not torch.equal(old, parameter)


# --- scaled rewards


def test_rewards_are_divided_by_the_deviation_of_returns():
    draw = torch.Generator().manual_seed(0)
    rewards = 3 * torch.randn(30, 4, generator=draw) + 1
    ended = torch.rand(30, 4, generator=draw) < 0.2
    scale, running, seen = ReturnScale(4, 0.9, torch.device("cpu")), [0.0] * 4, []
    for row, over in zip(rewards, ended, strict=True):
        found = scale.scaled(row, over).tolist()
        running = [0.9 * total + reward for total, reward in zip(running, row.tolist(), strict=True)]
        seen += running
        running = [0.0 if end else total for total, end in zip(running, over.tolist(), strict=True)]
        # beside what was seen, 1e-4 samples of mean 0 and variance 1
        count = len(seen) + 1e-4
        mean = sum(seen) / count
        variance = (sum((x - mean) ** 2 for x in seen) + 1e-4 * (1 + mean**2)) / count
        assert found == pytest.approx([reward / math.sqrt(variance + 1e-8) for reward in row.tolist()], rel=1e-5)


def test_a_reward_far_from_all_before_is_clamped(make_ppo):
    learner = make_ppo(normalise_returns=True, world={"rewards": (1e-3, 1e-3, 1e-3, 1e-3, 1e3), "steers": False})
    rollout, _ = learner.rollout(learner.restart())
    assert rollout.rewards.max() <= 10
    scale = make_ppo(normalise_returns=True, reward_clamp=0, world={"rewards": [2] * 5, "steers": False})
    rollout, _ = scale.rollout(scale.restart())
    assert rollout.rewards.min() > 0


def test_statistics_of_returns_travel_with_the_policy_if_asked(make_ppo):
    settings = {"normalise_returns": True, "steps": 80, "world": {"rewards": (0, 0, 0, 0, 7)}}
    first = make_ppo(**settings)
    run(first)
    mean, variance, count = json.loads(first.policy.spec.notes[ppo.NOTE])
    assert count == pytest.approx(80 + 1e-4)
    assert variance != 1
    for keep in (True, False):
        second = make_ppo(keep_return_statistics=keep, **settings)
        second.policy.spec = first.policy.spec
        learner = ppo.PpoLearner(second.policy, second.env, second.config, AttackConfig(), second.task)
        assert learner.returns.state().tolist() == ([mean, variance, count] if keep else [0, 1, 1e-4])
    first.policy.spec.notes[ppo.NOTE] = "[1, -2, 3]"
    with pytest.raises(WeightsError, match="keep_return_statistics"):
        ppo.PpoLearner(
            first.policy, first.env, second.config.__class__(keep_return_statistics=True), AttackConfig(), first.task
        )


# --- seeds and checkpoints


@every_loss
@pytest.mark.parametrize("attack", [AttackConfig(), AttackConfig(kind="pgd", steps=2, random_start=True)])
def test_a_run_follows_from_its_seed(make_ppo, loss, attack):
    def final(seed):
        rows, untouched = [], torch.get_rng_state()
        learner = make_ppo(loss, seed=seed, steps=120, attack=attack, normalise_returns=True)
        policy = run(learner, log=rows.append)
        assert torch.equal(torch.get_rng_state(), untouched)
        return weights(policy), untimed(rows)

    first, again, other = final(1), final(1), final(2)
    assert same(first[0], again[0])
    assert first[1] == again[1]
    assert not same(first[0], other[0])


@every_loss
@pytest.mark.parametrize("world", [{"limits": (0, 5)}, {"image": True}])
def test_a_checkpoint_goes_on_bit_for_bit(make_ppo, loss, world):
    settings = {"steps": 160, "checkpoint_steps": 80, "normalise_returns": True, "learning_rate_end": 0.1}
    settings |= {"world": world, "end": 0.2, "num_envs": 4, "rollout": 10}
    states, rows = [], []
    whole = run(make_ppo(loss, **settings), save=lambda state: states.append(from_file(state)), log=rows.append)
    assert [state["step"] for state in states] == [80]
    again = []
    learner = make_ppo(loss, weights=7, **settings)  # whatever it starts from
    policy = run(learner, states[0], log=again.append, save=lambda state: None)
    assert same(weights(policy), weights(whole))
    assert policy.spec.notes == whole.spec.notes
    assert untimed(again) == [row for row in untimed(rows) if row["step"] > 80]


# --- speaking


@pytest.mark.parametrize(
    ("loss", "more"), [("standard", set()), ("radial", {"robust", "certified"}), ("at", {"robust", "fooled"})]
)
def test_rows_of_metrics(make_ppo, loss, more):
    rows, progress = [], []
    run(make_ppo(loss, steps=200), log=rows.append, progress=lambda *given: progress.append(given))
    assert [row["step"] for row in rows] == [40, 80, 120, 160, 200]
    assert progress == [(step, 200) for step in (40, 80, 120, 160, 200)]
    always = {
        "step",
        "return",
        "return_sd",
        "episodes",
        "eps",
        "kappa",
        "updates",
        "steps_per_second",
        "surrogate",
        "value",
        "entropy",
    }
    shares = {"share_act", "share_env", "share_update"} | ({"share_attack"} if loss == "at" else set())
    assert set(rows[-1]) == always | shares | more | {"kl", "loss"}
    of_episodes = {"return", "return_sd"}
    assert all(
        isinstance(value, int | float) or (value is None and key in of_episodes) for key, value in rows[-1].items()
    )
    assert all(0 < row[name] < 1 for row in rows for name in row if name.startswith("share_"))
    assert (rows[-1]["eps"] > 0) == (loss != "standard")


def test_rows_come_at_the_first_rollout_after_their_step(make_ppo):
    rows = []
    run(make_ppo(steps=200, log_steps=70), log=rows.append)
    assert [row["step"] for row in rows] == [80, 160, 200]


def test_returns_are_raw_and_of_whole_episodes(make_ppo):
    learner = make_ppo(world={"rewards": [1] * 5, "steers": False, "limits": (3, 0)}, normalise_returns=True)
    steps = recorded(learner)
    learner.rollout(learner.restart())
    row, ended = learner.metrics(), sum(int(step.ended.sum()) for step in steps)
    assert row["episodes"] == ended
    assert row["return"] == pytest.approx((40 - int(learner.env._time.sum())) / ended)  # 1 per step


def test_a_stop_saves_first(make_ppo):
    states, asked = [], []
    with pytest.raises(KeyboardInterrupt):
        run(
            make_ppo(),
            stop=lambda: asked.append(None) or len(asked) == 3,
            save=lambda state: states.append(state["step"]),
        )
    assert states == [120]


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_divergence_is_refused(make_ppo, reward):
    world = {"rewards": [reward] * 5, "steers": False}
    with pytest.raises(TrainingError, match=r"diverged before step 40 .*ppo.learning_rate") as caught:
        run(make_ppo(world=world, reward_clamp=0))
    assert "\n" not in str(caught.value)
    learner = make_ppo(world=world, reward_clamp=0)
    learner.update(learner.rollout(learner.restart())[0])
    with pytest.raises(TrainingError, match="largest weight"):
        learner.state()  # no checkpoint of it either


def test_what_ppo_cannot_train_is_refused(make, make_ppo):
    dueling = make()
    with pytest.raises(ConfigError, match="actor-critic"):
        ppo.PpoLearner(dueling.policy, dueling.env, PpoConfig(), AttackConfig(), dueling.task)
    with pytest.raises(ConfigError, match="sa"):
        make_ppo("sa")


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"num_envs": 3, "rollout": 100}, "no multiple of ppo.batch_size 512"), ({"ramp_start": 0.8}, "not before")],
)
def test_settings_that_cannot_work_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        PpoConfig(**settings)
