"""On a GPU: PPO's graphs and compiled network train as eager code does, follow the schedules, and never make the host
wait."""

import io

import pytest
import torch

from bcl.config import AttackConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LOSSES = ["standard", "at", "radial"]
# No choice in where to go, so that a draw which rounding decides changes one sample and not the whole run. Adam's
# constant keeps rounding small where gradients are.
SETTINGS = {
    "device": "cuda", "num_envs": 8, "rollout": 8, "batch_size": 32, "epochs": 2, "learning_rate": 1e-3, "adam_eps": 1e-2,
    "precision": "fp32", "start": 4 / 255, "end": 8 / 255, "normalise_returns": True,
    "world": {"image": True, "limits": (0, 3), "steers": False},
}  # fmt: skip
compiled = pytest.mark.filterwarnings("ignore")  # of the compiler


@pytest.fixture(autouse=True)
def kernels_are_tried(monkeypatch):
    """As in training (`quick_kernels`), without its TF32: some of these compare float32."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)


def outputs(learner):
    with torch.no_grad():
        logits, values = learner.policy.network.logits_and_value((learner.env._looks / 255).cuda())
    return torch.cat([logits, values.unsqueeze(1)], dim=1)


def drawn(learner):
    return {name: generator.get_state() for name, generator in learner.generators.items()}


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


def advance(learner, obs):
    rollout, obs = learner.rollout(obs)
    learner.update(rollout)
    return obs


@pytest.mark.parametrize(
    ("loss", "accelerate", "precision", "form"),
    [
        *((loss, "graphs", precision, {}) for loss in LOSSES for precision in ("fp32", "bf16")),
        ("at", "graphs", "fp32", {"attack": AttackConfig(kind="pgd", steps=3, relative_step=0.5)}),
        ("at", "graphs", "fp32", {"attack": AttackConfig(kind="pgd", steps=3, objective="cross-entropy")}),
        *(pytest.param(loss, "full", "bf16", {}, marks=compiled) for loss in LOSSES),
    ],
)
def test_acceleration_changes_nothing_but_rounding(make_ppo, loss, accelerate, precision, form):
    settings = SETTINGS | {"precision": precision} | form
    fast, eager = (make_ppo(loss, accelerate=how, **settings) for how in (accelerate, "none"))
    before = outputs(eager)
    obs = [fast.restart(), eager.restart()]
    for _ in range(5):
        obs = [advance(learner, seen) for learner, seen in zip((fast, eager), obs, strict=True)]
        assert torch.equal(*obs)
        assert same(drawn(fast), drawn(eager))
    assert fast._improve._graph is not None
    rows = fast.metrics(), eager.metrics()
    assert rows[0]["updates"] == rows[1]["updates"] == 20
    tolerance = 2e-3 if precision == "fp32" else 2e-2
    learned = (outputs(eager) - before).abs().max()
    assert learned > 5 * tolerance
    torch.testing.assert_close(outputs(fast), outputs(eager), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(fast.returns.state(), eager.returns.state())
    assert [row["episodes"] for row in rows] == [rows[1]["episodes"]] * 2
    assert rows[0]["return"] == pytest.approx(rows[1]["return"])
    for name in ("surrogate", "value", "entropy", "robust"):
        if name in rows[1]:
            assert rows[0][name] == pytest.approx(rows[1][name], rel=10 * tolerance, abs=tolerance)


def test_graphs_follow_the_schedules(make_ppo):
    schedules = {"steps": 640, "learning_rate_end": 0.0, "start": 0.0, "end": 0.2, "ramp_start": 0.0, "epochs": 1}
    learner = make_ppo("at", **(SETTINGS | schedules | {"batch_size": 64}))
    obs = learner.restart()
    for _ in range(5):
        obs = advance(learner, obs)
    assert all(
        graph._graph is not None
        for graph in (learner._choose, learner._keep, learner._estimate, learner._show, learner._improve)
    )

    def moved(updates, step):
        nonlocal obs
        learner.updates, learner.step = updates, step
        before = outputs(learner)
        rollout, obs = learner.rollout(obs)
        learner.update(rollout)
        clean = rollout.obs.flatten(0, 1)[learner._order] / 255
        return (learner._seen - clean).abs().max().item(), not torch.equal(outputs(learner), before)

    assert moved(10**6, 0) == (pytest.approx(0.2, abs=1e-6), True)
    assert moved(10**6, 640)[1] is False  # of size 0 by now
    learner.task = type(learner.task)("at", 0.0, 0.0, 0)
    assert moved(10**6, 0)[0] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_checkpoint_goes_on(make_ppo, loss):
    whole, again = make_ppo(loss, **SETTINGS), make_ppo(loss, weights=7, **SETTINGS)
    obs = whole.restart()
    for _ in range(3):
        obs = advance(whole, obs)
    file = io.BytesIO()
    torch.save(whole.state(), file)
    file.seek(0)
    again.restore(torch.load(file, weights_only=True))
    assert torch.equal(outputs(again), outputs(whole))
    assert same(drawn(again), drawn(whole))
    obs = [whole.restart(), again.restart()]
    for _ in range(3):  # the one on its graphs, the other warming up again
        obs = [advance(learner, seen) for learner, seen in zip((whole, again), obs, strict=True)]
        assert torch.equal(*obs)
    assert (whole.step, whole.updates) == (again.step, again.updates) == (384, 24)
    assert same(drawn(again), drawn(whole))
    torch.testing.assert_close(outputs(again), outputs(whole), rtol=2e-3, atol=2e-3)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("accelerate", ["none", "graphs"])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_host_never_waits_for_an_update(make_ppo, loss, accelerate):
    learner = make_ppo(loss, **(SETTINGS | {"accelerate": accelerate, "precision": "auto"}))
    obs = learner.restart()
    for _ in range(4):
        obs = advance(learner, obs)
    rollout, obs = learner.rollout(obs)
    torch.cuda.set_sync_debug_mode("error")
    try:
        learner.update(rollout)
        learner._choose()
        learner._keep()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert learner.metrics()["updates"] == 20
