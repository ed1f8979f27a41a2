"""The learned adversary: it finds a trap that no myopic attack sees, is repeatable, resumes, and keeps the rules."""

import dataclasses
import sys
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch

import bcl
from bcl.api.measuring import untrained_policy
from bcl.attacks import Directed, Learned, attack_by_name, perturb
from bcl.attacks.learned import NO_TARGET
from bcl.config import DqnConfig
from bcl.envs import make_env
from bcl.errors import BclError, ConfigError, WeightsError
from bcl.evaluation import Cell, Plan, read_evaluations, run_suite
from bcl.experiment import learned_adversary as planning
from bcl.experiment.learned_adversary import AdversaryEnvs, director_config, identity, myopic_director, ready
from bcl.games import GymnasiumGame
from bcl.policies import Policy, PolicySpec
from bcl.policies.files import fingerprint
from bcl.runs.results import ScoresFolder

CORRIDOR = 10
SILENT = lambda label: lambda done, of: None  # noqa: E731


class Fork(gymnasium.Env[np.ndarray, int]):
    """The first action decides: 0 is right, 1 enters a corridor with a trap at its end (-10), 2 and 3 stumble (-1). The
    other way pays 10 in the end. Observation: where one is (fork, way or trap's corridor, and how far), then four idle
    numbers."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3 + CORRIDOR + 4,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)
    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._time, self._trapped = 0, False
        return self._look(), {}

    def step(self, action: int) -> Any:
        reward = 0.0
        if self._time == 0:
            self._trapped = action == 1
            reward = -1.0 if action in (2, 3) else 0.0
        self._time += 1
        over = self._time == CORRIDOR
        reward += (-10.0 if self._trapped else 10.0) if over else 0.0
        return self._look(), reward, over, False, {}

    def _look(self) -> np.ndarray:
        seen = np.zeros(self.observation_space.shape, np.float32)
        seen[0 if self._time == 0 else 2 if self._trapped else 1] = 1.0
        seen[3 + min(self._time, CORRIDOR - 1)] = 1.0
        return seen


gymnasium.register("Fork-v0", Fork)
FORK = GymnasiumGame("Fork-v0")


def walker() -> Policy:
    """At the fork it scores the actions 0.3, 0.1, 0.2 and 0; every idle number speaks for one of them. So all can be
    reached with 0.3: PGD comes to the next best (2), the worst action is 3, and only a planner aims at 1."""
    size = 3 + CORRIDOR + 4
    policy = Policy(PolicySpec("plain-mlp", (size,), 4, (-1.0,) * size, (1.0,) * size, (), game=FORK))
    with torch.no_grad():
        weight = torch.zeros(4, size)
        weight[:, 0] = torch.tensor([0.3, 0.1, 0.2, 0.0])
        weight[:, -4:] = torch.eye(4)
        policy.network.model[1].weight.copy_(weight)
        policy.network.model[1].bias.zero_()
    return policy.eval()


def test_planning_wins_where_myopic_attacks_see_nothing() -> None:
    victim = walker()
    before = fingerprint(victim)
    found = bcl.evaluate(victim, attacks=["pgd-30", "worst-action", "learned-4000"], eps=0.3, episodes=8, device="cpu")
    nominal, greedy, worst, learned = (score.mean for score in found.scores)
    assert (nominal, greedy, worst) == (10, 9, 9)
    assert learned == -10
    assert "planning-wins" in [flag.name for flag in found.flags]
    assert fingerprint(victim) == before
    assert found.scores[-1].max_perturbation <= 0.3 + 1e-6
    assert found.scores[-1].attack == Learned(training=4000)
    assert not found.scores[-1].instead


@dataclasses.dataclass(frozen=True)
class Nothing:
    """Shows the truth."""

    def __call__(self, policy: Any, obs: torch.Tensor, eps: Any, generator: Any) -> torch.Tensor:
        return obs


def test_a_myopic_attack_that_is_played_instead_is_named_and_is_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = lambda obs: torch.zeros(len(obs), 5)  # noqa: E731  (aims at nothing)
    monkeypatch.setattr(planning, "train_run", lambda *facts, **more: idle)
    found = bcl.evaluate(walker(), attacks=[Nothing(), "learned-4000"], eps=0.3, episodes=8, device="cpu")
    assert [score.mean for score in found.scores] == [10, 10, 9]
    assert found.scores[-1].instead == "PGD-30"
    assert "planning-wins" not in [flag.name for flag in found.flags]
    steps = "a director trained for 4,000 agent steps at each budget (on images ten times as many)"
    assert f"Learned: {steps}; stronger than it, and played instead: PGD-30 at 0.3" in str(found)
    assert found.table().notes[0] in str(found)


def test_on_cartpole_it_beats_pgd_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "EPISODES", 4)
    monkeypatch.setattr(planning, "MYOPIC", [attack_by_name("pgd-10")])  # others choose longer than it trains
    short_sighted = {"steps": 12_000, "gamma": 0.98, "n_step": 3}
    bcl.train("cartpole", out=tmp_path / "run", seed=1, dqn=short_sighted, evaluation={"episodes": 1})
    found = bcl.evaluate(tmp_path / "run", attacks=["pgd-30", "learned-20000"], eps=0.03, episodes=10, device="cpu")
    _, greedy, learned = found.scores
    assert learned.mean + 2 * learned.sem < 0.85 * (greedy.mean - 2 * greedy.sem)


def test_a_director_is_obeyed_where_the_budget_allows() -> None:
    victim, obs = walker(), torch.zeros(5, 3 + CORRIDOR + 4)
    obs[:, 0] = 1
    aims = torch.tensor([0, 1, 2, 3, NO_TARGET])
    generator = torch.Generator().manual_seed(0)
    seen = perturb(Directed(lambda _: aims), victim, obs, 0.3, generator)
    assert victim(seen).argmax(dim=1).tolist() == [0, 1, 2, 3, 0]
    assert torch.equal(seen[4], obs[4])
    assert float((seen - obs).abs().max()) <= 0.3 + 1e-6
    seen = perturb(Directed(lambda _: aims), victim, obs, 0.01, generator)
    assert victim(seen).argmax(dim=1).tolist() == [0] * 5


def test_the_adversary_plays_its_victims_game_with_rewards_negated() -> None:
    env = AdversaryEnvs(make_env(FORK, 3), walker(), 0.3)
    assert (env.num_actions, env.action_names[0]) == (5, "truth")
    env.reset(0)
    returns = torch.zeros(3)
    for _ in range(CORRIDOR):
        env.send(torch.tensor([0, 2, 4]))  # the truth, action 1, action 3
        step = env.recv()
        returns += step.reward
    assert returns.tolist() == [-10, 10, -9]
    assert step.ended.all()


def test_observations_that_are_not_finite_end_a_training_where_attacks_do_not_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU."""
    module = sys.modules["bcl.evaluation.play"]
    monkeypatch.setattr(module, "perturb", lambda *inputs, check: perturb(*inputs, check=False))
    env = AdversaryEnvs(make_env(FORK, 3), walker(), 0.3)
    env.reset(0)[1, 0] = float("nan")
    with pytest.raises(BclError, match="observation 1 of 3 has NaN or infinite elements"):
        env.send(torch.tensor([0, 2, 4]))


def test_a_director_begins_as_a_myopic_attack() -> None:
    env = make_env(bcl.config.resolve("cartpole").game, 1)
    torch.manual_seed(0)
    spec = PolicySpec("dueling-mlp", (4,), 2, env.low, env.high, (16, 16), game=env.game)
    victim, obs = Policy(spec), torch.randn(64, 4)
    config = director_config(victim, Plan(env.game, 1), Learned())
    director = myopic_director(victim, config)
    assert director is not None
    assert torch.equal(director(obs).argmax(dim=1) - 1, victim(obs).argmin(dim=1))
    assert director.spec.num_actions == 3
    assert config.network.hidden == (16, 16)
    assert myopic_director(walker(), config) is None  # a linear network cannot plan


def trained(folder: Path, stop_at: int = 0) -> Cell:
    """The fork's adversary after a short training; `stop_at`: a step at which somebody ends it."""

    def progress(label: str) -> Any:
        def report(done: int, of: int) -> None:
            if stop_at and label.startswith("training") and done >= stop_at:
                raise KeyboardInterrupt

        return report

    return ready(walker(), Plan(FORK, 2), ScoresFolder(folder), progress)(Cell(Learned(training=1_200), 0.3))


def weights(folder: Path) -> bytes:
    [file] = folder.glob("learned-at-0.3-*/policy.safetensors")
    return file.read_bytes()


def test_training_is_repeatable_and_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    trained(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "stopped", stop_at=600)
    assert [*(tmp_path / "stopped").glob("learned-*/checkpoint.pt")]
    trained(tmp_path / "stopped")
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")
    before = [*(tmp_path / "whole").rglob("*")]
    trained(tmp_path / "whole", stop_at=1)  # nothing is trained again
    assert [*(tmp_path / "whole").rglob("*")] == before


def test_of_director_and_myopic_attacks_the_strongest_is_kept(tmp_path: Path) -> None:
    victim, plan = walker(), Plan(FORK, 2)
    cell = ready(victim, plan, ScoresFolder(tmp_path), SILENT)(Cell(Learned(training=1_200), 0.3))
    [home] = tmp_path.glob("learned-at-*")
    by_attack = {s.attack: s.mean for s in run_suite(victim, plan, [cell], ScoresFolder(tmp_path))}
    [chosen_by] = read_evaluations(ScoresFolder(home), "")
    choosing = chosen_by.scores
    assert len(choosing) == 3
    assert by_attack[Learned(training=1_200)] == min(s.mean for s in choosing)
    assert not {s.seed for s in choosing} & {plan.seed}
    (home / "policy.safetensors").write_bytes(b"damaged")
    with pytest.raises(WeightsError, match=f"delete '{home}', and it is trained again"):
        ready(victim, plan, ScoresFolder(tmp_path), SILENT)(Cell(Learned(training=1_200), 0.3))


def test_an_adversary_is_found_by_what_decides_it_in_any_version(monkeypatch: pytest.MonkeyPatch) -> None:
    victim = walker()
    config = director_config(victim, Plan(FORK, 2), Learned(training=1_200))
    name = identity(victim, config, "game", 0.3, "cpu")
    monkeypatch.setattr(bcl, "__version__", "99.0")
    assert identity(victim, config, "game", 0.3, "cpu") == name
    told_otherwise = dataclasses.replace(config.dqn, log_steps=7, checkpoint_minutes=3.0, accelerate="none")
    assert identity(victim, dataclasses.replace(config, dqn=told_otherwise), "game", 0.3, "cpu") == name
    new = dataclasses.make_dataclass("DqnConfig", [("added", int, 0)], bases=(DqnConfig,), frozen=True)
    later = dataclasses.replace(config, dqn=new(**dataclasses.asdict(config.dqn)))
    assert identity(victim, later, "game", 0.3, "cpu") == name
    shorter = director_config(victim, Plan(FORK, 2), Learned(training=1_000))
    quicker = dataclasses.replace(config, dqn=dataclasses.replace(config.dqn, learning_rate=0.5))
    elsewhere = dataclasses.replace(config, game=GymnasiumGame("CartPole-v1"))
    other = walker()
    with torch.no_grad():
        next(other.parameters()).add_(1)
    names = {
        identity(victim, config, "game", 0.2, "cpu"),
        identity(victim, config, "game", 0.3, "cuda"),
        identity(victim, config, "varied", 0.3, "cpu"),
        identity(victim, shorter, "game", 0.3, "cpu"),
        identity(victim, quicker, "game", 0.3, "cpu"),
        identity(victim, elsewhere, "game", 0.3, "cpu"),
        identity(other, config, "game", 0.3, "cpu"),
    }
    monkeypatch.setattr(planning, "SEED", 5)
    names.add(identity(victim, config, "game", 0.3, "cpu"))
    monkeypatch.undo()
    monkeypatch.setattr(planning, "MEANING", planning.MEANING + 1)
    names.add(identity(victim, config, "game", 0.3, "cpu"))
    assert len(names | {name}) == 10
    assert name not in names


def test_an_adversary_needs_a_training() -> None:
    with pytest.raises(ConfigError, match="999 steps are too few to train an adversary"):
        attack_by_name("learned-999")
    with pytest.raises(ConfigError, match="did you mean 'learned-1000'"):
        attack_by_name("learned-0060")
    with pytest.raises(BclError, match="has to be trained first"):
        perturb(Learned(), walker(), torch.zeros(1, 3 + CORRIDOR + 4), 0.1, torch.Generator())


class Picture(gymnasium.Env[np.ndarray, int]):
    """Five steps of noise; action 1 earns 1."""

    observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._time = 0
        return self._look(), {}

    def step(self, action: int) -> Any:
        self._time += 1
        return self._look(), float(action), self._time == 5, False, {}

    def _look(self) -> np.ndarray:
        return self.np_random.integers(256, size=(36, 36, 1), dtype=np.uint8)


gymnasium.register("Picture-v0", Picture)


def test_images_are_attacked_with_a_director_of_the_victims_kind(tmp_path: Path, monkeypatch: Any) -> None:
    few = {"num_envs": 8, "batch_size": 16, "samples_per_step": 1.0, "buffer_size": 500, "replay_initial": 100}
    for name, value in (("IMAGES", planning.IMAGES | few), ("IMAGE_FACTOR", 1), ("EPISODES", 2)):
        monkeypatch.setattr(planning, name, value)
    game = GymnasiumGame("Picture-v0")
    victim, plan = untrained_policy(game, "cpu"), Plan(game, 1, starts="varied")
    cell = ready(victim, plan, ScoresFolder(tmp_path), SILENT)(Cell(Learned(training=1_000), 10 / 255))
    [score] = run_suite(victim, plan, [cell], ScoresFolder(tmp_path))
    assert 0 < score.max_perturbation <= 10 / 255 + 1e-6
    [home] = tmp_path.glob("learned-at-10-255-*")
    director = bcl.load(home / "policy.safetensors")
    assert (director.spec.kind, director.spec.num_actions) == ("dueling-cnn", 3)
