"""On a GPU: graphs and compiled networks train as eager code does, follow the schedules, and never make the host
wait."""

import copy
import io

import pytest
import torch

from bcl.config import AttackConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LOSSES = ["standard", "at", "radial", "sa"]
# Random actions: greedy ones could differ where rounding decides. Adam's constant keeps rounding small where gradients
# are.
SETTINGS = {
    "device": "cuda", "num_envs": 8, "batch_size": 32, "samples_per_step": 4.0, "buffer_size": 128, "replay_initial": 32,
    "target_sync": 64, "learning_rate": 1e-3, "adam_eps": 1e-2, "exploration_start": 1.0, "exploration_end": 1.0,
    "precision": "fp32", "start": 4 / 255, "end": 8 / 255, "n_step": 2, "world": {"image": True, "limits": (0, 3)},
}  # fmt: skip
IN_PLAY = AttackConfig(kind="pgd", steps=3, relative_step=0.5, random_start=True, in_play=0.5)
compiled = pytest.mark.filterwarnings("ignore")  # of the compiler


@pytest.fixture(autouse=True)
def kernels_are_tried(monkeypatch):
    """As in training (`quick_kernels`), without its TF32: some of these compare float32."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)


def scores(learner):
    with torch.no_grad():
        return learner.policy((learner.env._looks / 255).cuda())


def drawn(learner):
    return {name: generator.get_state() for name, generator in learner.generators.items()}


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("loss", "accelerate", "precision", "form"),
    [
        *((loss, "graphs", precision, {}) for loss in LOSSES for precision in ("fp32", "bf16")),
        ("at", "graphs", "fp32", {"attack": AttackConfig(fresh=True)}),
        ("at", "graphs", "fp32", {"attack": AttackConfig(kind="pgd", steps=3, relative_step=0.5, random_start=True)}),
        ("at", "graphs", "fp32", {"attack": IN_PLAY}),
        pytest.param("at", "full", "bf16", {"attack": IN_PLAY}, marks=compiled),
        ("radial", "graphs", "fp32", {"radial_approach": "1"}),
        ("radial", "graphs", "fp32", {"radial_approach": "1-reference"}),
        *(pytest.param(loss, "full", "bf16", {}, marks=compiled) for loss in LOSSES),
    ],
)
def test_acceleration_changes_nothing_but_rounding(make, play, loss, accelerate, precision, form):
    settings = SETTINGS | {"precision": precision} | form
    fast, eager = (make(loss, accelerate=how, **settings) for how in (accelerate, "none"))
    before = scores(eager)
    obs = [fast.restart(), eager.restart()]
    for _ in range(26):  # the memory fills and wraps around
        obs = [play(learner, 1, seen) for learner, seen in zip((fast, eager), obs, strict=True)]
        assert torch.equal(*obs)
        assert same(drawn(fast), drawn(eager))
    rows = fast.metrics(), eager.metrics()
    assert rows[0]["updates"] == rows[1]["updates"] >= 20
    tolerance = 2e-3 if precision == "fp32" else 2e-2
    learned = (scores(eager) - before).abs().max()
    assert learned > 5 * tolerance
    torch.testing.assert_close(scores(fast), scores(eager), rtol=tolerance, atol=tolerance)
    for name in ("td", "q", "loss", "robust"):
        if name in rows[1]:
            assert rows[0][name] == pytest.approx(rows[1][name], rel=10 * tolerance, abs=tolerance)


def test_graphs_follow_the_schedules(make, play):
    schedules = {"exploration_steps": 200, "exploration_end": 0.0, "learning_rate_end": 0.0, "steps": 400, "n_step": 1}
    learner = make("at", **(SETTINGS | schedules | {"start": 0.0, "end": 0.2, "ramp_steps": 300}))
    obs = play(learner, 12)
    assert all(graph._graph is not None for graph in (learner._show, learner._improve, learner.player._choose))
    clean = obs / 255

    learner.step = 0
    learner.set_schedules()
    assert torch.equal(learner.attack(obs), clean)  # no budget yet
    assert learner.metrics()["eps"] == 0
    learner.step = 400
    learner.set_schedules()
    seen = learner.attack(obs).clone()
    assert (seen - clean).abs().max().item() == pytest.approx(0.2, abs=1e-6)
    before = scores(learner)
    learner.player.follow(learner.policy)
    actions, _ = learner.play(obs)
    learner.update()  # of size 0 by now
    assert torch.equal(scores(learner), before)
    with torch.no_grad():
        assert torch.equal(actions, learner.policy(clean).argmax(dim=1))  # no random ones any more
    learner.store(obs, actions, seen)
    kept = learner.replay.sample(2000, torch.Generator("cuda").manual_seed(0))
    assert (kept.seen - kept.obs).abs().max().item() == pytest.approx(0.2, abs=1e-6)

    learner.step = 0
    learner.set_schedules()
    learner.update()
    assert not torch.equal(scores(learner), before)


def test_actions_come_from_the_weights_of_one_pass_ago(make):
    learner = make(**(SETTINGS | {"exploration_start": 0.0, "exploration_end": 0.0, "learning_rate": 0.05}))
    obs = learner.restart()
    past = [copy.deepcopy(learner.policy.state_dict())] * 2
    shadow, decided, changed = copy.deepcopy(learner.policy), 0, 0
    for _ in range(30):
        past = [past[1], copy.deepcopy(learner.policy.state_dict())]
        actions, _ = learner.play(obs)
        learner.update()
        choices = []
        for weights in (past[0], learner.policy.state_dict()):
            shadow.load_state_dict(weights)
            with torch.no_grad():
                choices.append(shadow(obs / 255))
        clear = (choices[0][:, 0] - choices[0][:, 1]).abs() > 1e-3
        assert torch.equal(actions[clear], choices[0].argmax(dim=1)[clear])
        decided += int(clear.sum())
        changed += int((choices[0].argmax(dim=1) != choices[1].argmax(dim=1))[clear].sum())
        obs = learner.store(obs, actions, None)
    assert decided > 100
    assert changed > 0  # the newest weights would have acted differently


@pytest.mark.parametrize("loss", LOSSES)
def test_a_checkpoint_goes_on(make, play, loss):
    settings = SETTINGS | {"checkpoint_replay": True, "learning_rate_end": 0.1}
    whole, again = make(loss, **settings), make(loss, weights=7, **settings)
    play(whole, 12)
    file = io.BytesIO()
    torch.save(whole.state(), file)
    file.seek(0)
    again.restore(torch.load(file, weights_only=True))
    assert torch.equal(scores(again), scores(whole))
    assert same(drawn(again), drawn(whole))
    assert torch.equal(play(whole, 12), play(again, 12))  # the one on its graphs, the other warming up again
    assert whole.step == again.step == 192
    assert same(drawn(again), drawn(whole))
    torch.testing.assert_close(scores(again), scores(whole), rtol=2e-3, atol=2e-3)
    kept = [learner.replay.sample(500, torch.Generator("cuda").manual_seed(0)) for learner in (whole, again)]
    for name in ("obs", "actions", "rewards", "next_obs", "discounts", "weights"):
        assert torch.equal(getattr(kept[0], name), getattr(kept[1], name))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("accelerate", ["none", "graphs"])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_host_never_waits_for_an_update(make, play, loss, accelerate):
    learner = make(loss, **(SETTINGS | {"accelerate": accelerate, "precision": "auto"}))
    obs = play(learner, 12)
    done = learner.metrics()["updates"]
    assert done > 0
    torch.cuda.set_sync_debug_mode("error")
    try:
        learner.attack(obs)
        learner.update()
        learner.player._choose()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert learner.metrics()["updates"] == 1
