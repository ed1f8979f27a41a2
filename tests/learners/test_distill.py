"""A student keeps its teacher's actions, and holds them where the teacher does not."""

from dataclasses import replace

import pytest
import torch

from bcl import losses
from bcl.attacks import PGD, perturb
from bcl.bounds import certified, input_box, margins
from bcl.config import DistillConfig
from bcl.errors import ConfigError, WeightsError
from bcl.learners import distill, learner
from bcl.learners.learner import Record, Task
from bcl.learners.pacing import Pace
from bcl.policies import Policy, PolicySpec
from bcl.policies.files import save
from tests.learners.told import Told

BUDGET = 0.2  # states are one-hot: below 0.5 every one can be told from the others
SMALL = DistillConfig(
    steps=4_000, num_envs=4, batch_size=32, samples_per_step=4.0, learning_rate=5e-3, buffer_size=2_000,
    exploration=0.3, in_play=0.0, log_steps=40, checkpoint_minutes=1e6,
)  # fmt: skip
PACE = Pace(
    start=0.0, target=BUDGET, rise_steps=1_500, patience=10**6, step_back=0.5, increment=BUDGET, pace_episodes=4,
    gentle_below=0.01, gentle_from=1e-3, nominal_threshold=-1.0, certified_threshold=0.9,
)  # fmt: skip
STATES = torch.eye(5)


def teacher_of(env, kind: str, seed: int) -> Policy:
    torch.manual_seed(seed)
    hidden = (16, 16) if kind == "actor-critic-mlp" else (16,)
    return Policy(PolicySpec(kind, env.obs_shape, env.num_actions, env.low, env.high, hidden))


def proven(policy: Policy, actions: torch.Tensor) -> torch.Tensor:
    box = input_box(STATES, BUDGET, policy.low, policy.high)
    return certified(margins(policy.chain(), *box, actions, "ibp"), actions, policy(STATES))


@pytest.mark.parametrize(
    ("kind", "box", "spread"),
    [
        ("dueling-mlp", 1.0, 0.0),
        ("dueling-mlp", 0.3, 0.7),
        ("dueling-mlp", 0.0, 0.0),
        ("actor-critic-mlp", 1.0, 0.0),
    ],
)
@torch.no_grad()
def test_a_student_holds_its_teachers_actions_within_the_budget(chain, kind, box, spread):
    env = chain(4, limits=(7,))
    student = teacher_of(env, kind, seed=3)
    actions = student(STATES).argmax(dim=1)
    assert not proven(student, actions).all(), "there is something to learn"
    rows = []
    config = replace(SMALL, box=box, spread=spread)
    with torch.enable_grad():
        distill.train(student, env, config, Task("distill", 0.0, BUDGET, 0, PACE), Told(log=rows.append))
    assert rows[-1]["eps"] == pytest.approx(BUDGET)
    assert torch.equal(student(STATES).argmax(dim=1), actions)
    if box == 1:
        assert proven(student, actions).all()
    shown = perturb(PGD(30, 0.1), student, STATES, BUDGET, torch.Generator().manual_seed(0))
    assert torch.equal(student(shown).argmax(dim=1), actions)


@pytest.mark.parametrize("box", [0.0, 0.3])
def test_budgets_are_spread_below_the_current_one(chain, monkeypatch, box):
    """Those of the attack and those of the boxes around what it finds add up to budgets from 0.3 eps to eps."""
    asked = []
    boxed = []
    attack, around = learner.perturb, distill.input_box

    def asking(kind, policy, obs, eps, *rest, **more):
        asked.append(eps)
        return attack(kind, policy, obs, eps, *rest, **more)

    def boxing(centre, radius, low, high):
        boxed.append(radius.flatten())
        return around(centre, radius, low, high)

    monkeypatch.setattr(learner, "perturb", asking)
    monkeypatch.setattr(distill, "input_box", boxing)
    env = chain(4, limits=(7,))
    config = replace(SMALL, box=box, spread=0.7, steps=80, accelerate="none")
    task = Task("distill", BUDGET, 2 * BUDGET, 0, replace(PACE, start=BUDGET, target=2 * BUDGET, rise_steps=10**9))
    distill.train(teacher_of(env, "dueling-mlp", 3), env, config, task, Record())
    total = asked[-1] + (boxed[-1] if box else 0)
    assert len(total) == SMALL.batch_size
    assert total.max().item() == pytest.approx(BUDGET, abs=1e-4)
    assert 0.3 * BUDGET < total.min().item() < 0.35 * BUDGET
    assert total.mean().item() == pytest.approx(0.65 * BUDGET, rel=0.05)


def test_bounds_alone_cover_the_whole_budget(chain, monkeypatch):
    boxed, around = [], distill.input_box
    monkeypatch.setattr(
        distill, "input_box", lambda centre, radius, *box: (boxed.append(radius), around(centre, radius, *box))[1]
    )
    env = chain(4, limits=(7,))
    task = Task("distill", BUDGET, 2 * BUDGET, 0, replace(PACE, start=BUDGET, target=2 * BUDGET, rise_steps=10**9))
    config = replace(SMALL, box=1.0, spread=0.7, steps=80, accelerate="none")
    distill.train(teacher_of(env, "dueling-mlp", 3), env, config, task, Record())
    assert boxed[-1].min().item() == pytest.approx(BUDGET, abs=1e-4)


@pytest.fixture
def last_loss(chain, monkeypatch):
    """Trains with some settings; mistakes (B, A) and weights (B,) that the loss got last."""
    given = []
    loss = distill.losses.distilled

    def looking(clean, worst, mistakes, weight, kappa):
        given.append((mistakes, weight))
        return loss(clean, worst, mistakes, weight, kappa)

    def train(**settings):
        env = chain(4, limits=(7,))
        config = replace(SMALL, steps=80, accelerate="none", **settings)
        distill.train(teacher_of(env, "dueling-mlp", 3), env, config, Task("distill", 0.0, BUDGET, 0, PACE), Record())
        return given[-1]

    monkeypatch.setattr(distill.losses, "distilled", looking)
    return train


@pytest.mark.parametrize("stakes", [0.0, 1.0])
def test_states_count_by_their_stakes(last_loss, stakes):
    _, weights = last_loss(stakes=stakes)
    assert weights.sum().item() == pytest.approx(1)
    assert (weights.std().item() > 1e-3) == (stakes > 0)


def test_how_far_behind_an_action_is_a_whole_mistake_is_a_setting(last_loss):
    at_once, _ = last_loss(whole_mistake=1e-6)
    assert (at_once.amax(dim=1) == 1).all()  # of actions that are not the teacher's
    hardly, _ = last_loss(whole_mistake=1e6)
    assert (hardly < 1e-4).all()


def test_the_teacher_does_not_move(chain):
    env = chain(4, limits=(7,))
    learner = distill.DistillLearner(
        teacher_of(env, "dueling-mlp", 3), env, SMALL, Task("distill", 0.0, BUDGET, 0, PACE)
    )
    before = [parameter.clone() for parameter in learner.teacher.parameters()]
    obs = learner.restart()
    for _ in range(200):
        actions = learner.play(obs)
        learner.update()
        obs = learner.store(obs, actions)
        learner.metrics()
    moved = [not torch.equal(a, b) for a, b in zip(before, learner.policy.parameters(), strict=True)]
    assert any(moved)
    assert all(torch.equal(a, b) for a, b in zip(before, learner.teacher.parameters(), strict=True))


def test_a_student_may_have_another_teacher_than_its_start(chain, tmp_path):
    env = chain(4, limits=(7,))
    teacher, student = teacher_of(env, "dueling-mlp", 3), teacher_of(env, "dueling-mlp", 1)
    actions = teacher(STATES).argmax(dim=1)
    assert not torch.equal(student(STATES).argmax(dim=1), actions)
    save(teacher, tmp_path / "teacher.safetensors")
    config = replace(SMALL, teacher=str(tmp_path / "teacher.safetensors"))
    distill.train(student, env, config, Task("distill", 0.0, BUDGET, 0, PACE), Record())
    assert torch.equal(student(STATES).argmax(dim=1), actions)
    assert proven(student, actions).all()


def test_a_run_is_not_continued_with_another_teacher(chain, tmp_path):
    env = chain(4, limits=(7,))
    file = tmp_path / "teacher.safetensors"
    config = replace(SMALL, teacher=str(file))
    task = Task("distill", 0.0, BUDGET, 0, PACE)

    def learner_of(seed: int) -> distill.DistillLearner:
        save(teacher_of(env, "dueling-mlp", seed), file)
        return distill.DistillLearner(teacher_of(env, "dueling-mlp", 1), env, config, task)

    state = learner_of(3).state()
    learner_of(3).restore(state)
    with pytest.raises(ConfigError, match=r"another teacher.*teacher\.safetensors"):
        learner_of(4).restore(state)


def test_a_teacher_must_fit_its_student(chain, tmp_path):
    env = chain(4)
    student = teacher_of(env, "dueling-mlp", 0)
    for change, what in (
        ({"num_actions": env.num_actions + 1}, "other actions"),
        ({"obs_shape": (4,)}, "other observations"),
        ({"high": (9.0,)}, "other observations"),
    ):
        save(Policy(replace(student.spec, **change)), tmp_path / "odd.safetensors")
        with pytest.raises(ConfigError, match=what):
            distill.load_teacher(str(tmp_path / "odd.safetensors"), student)
    with pytest.raises(WeightsError, match="does not exist"):
        distill.load_teacher(str(tmp_path / "none.safetensors"), student)


@pytest.mark.parametrize(("paced_by", "rises"), [("held", False), ("gain", True)])
def test_the_budget_waits_for_what_it_is_paced_by(chain, monkeypatch, paced_by, rises):
    env, rows = chain(4, limits=(7,)), []
    student = teacher_of(env, "dueling-mlp", seed=3)
    loss = losses.distilled

    def none_held(*given):
        total, info = loss(*given)
        return total, info | {"held": torch.zeros(())}

    monkeypatch.setattr(losses, "distilled", none_held)
    monkeypatch.setattr(losses, "gain", lambda *_: torch.ones(()))
    config = replace(SMALL, steps=800, paced_by=paced_by)
    distill.train(student, env, config, Task("distill", 0.0, BUDGET, 0, PACE), Told(log=rows.append))
    assert (rows[-1]["eps"] > PACE.first) == rises


def test_it_needs_a_pace(chain):
    env = chain(4)
    with pytest.raises(ConfigError, match='strategy = "paced"'):
        distill.train(teacher_of(env, "dueling-mlp", 0), env, SMALL, Task("distill", 0.0, BUDGET, 0), Record())


def test_a_teacher_without_preferences_is_refused(chain):
    env = chain(4, limits=(7,))
    blank = teacher_of(env, "dueling-mlp", 0)
    with torch.no_grad():
        for parameter in blank.parameters():
            parameter.zero_()
    with pytest.raises(ConfigError, match="all actions the same action score"):
        distill.train(blank, env, SMALL, Task("distill", 0.0, BUDGET, 0, PACE), Record())
