"""Foreign checkpoints against the networks they come from, rebuilt here as their authors describe them."""

import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import bcl
from bcl.config import resolve
from bcl.errors import WeightsError
from bcl.evaluation import game_for_evaluation
from bcl.games import AtariGame
from bcl.policies.importers import import_policy


class ReferenceDueling(nn.Module):
    """radial_rl_v2 / SA-DQN / BCL: reads the transposed image."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU()
        )
        self.advantage = nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions))
        self.value = nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, x: Tensor) -> Tensor:
        flat = self.cnn(x).reshape(len(x), -1)
        advantage = self.advantage(flat)
        return self.value(flat) + advantage - advantage.mean(1, keepdim=True)


def reference_v1(actions: int) -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Sequential(
                nn.Conv2d(1, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1),
                nn.ReLU(), nn.Flatten(), nn.Linear(2304, 512), nn.ReLU(), nn.Linear(512, actions),
            )  # fmt: skip

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x)

    return Net()


@pytest.mark.parametrize("wrapped", [True, False])
def test_radial_dqn_computes_the_same_q_on_upright_images(tmp_path: Path, wrapped: bool) -> None:
    torch.manual_seed(0)
    reference = ReferenceDueling(4)
    state = reference.state_dict()
    torch.save(
        {"model_state_dict": state, "optimizer_state_dict": {}, "step": 7} if wrapped else state, tmp_path / "m.pt"
    )
    policy = import_policy(tmp_path / "m.pt", "radial-dqn", resolve("pong").game)
    upright = torch.rand(16, 1, 84, 84)
    torch.testing.assert_close(policy(upright), reference(upright.transpose(2, 3)), atol=1e-5, rtol=0)
    assert not torch.allclose(policy(upright), reference(upright), atol=1e-3)
    assert isinstance(policy.spec.game, AtariGame)
    assert policy.spec.game.pool == "rgb"


def test_radial_dqn_v1(tmp_path: Path) -> None:
    reference = reference_v1(18)
    torch.save(reference.state_dict(), tmp_path / "m.pt")
    policy = import_policy(tmp_path / "m.pt", "radial-dqn-v1", resolve("road_runner").game)
    obs = torch.rand(4, 1, 80, 80)
    torch.testing.assert_close(policy(obs), reference(obs), atol=1e-5, rtol=0)
    assert isinstance(policy.spec.game, AtariGame)
    assert policy.spec.game.pipeline == "v1"
    trained_here = resolve("road_runner", recipe="bcl-mos-at").game
    judged = [game_for_evaluation(game, None, 10_000) for game in (policy.spec.game, trained_here)]
    assert [game.life_reset for game in judged if isinstance(game, AtariGame)] == [True, True]


@pytest.mark.parametrize("name", ["FruitBot_ppo.pt", "FruitBot_radial_ppo.pt"])
def test_released_ppo_weights(released: Path, tmp_path: Path, name: str) -> None:
    policy = import_policy(released / name, "radial-ppo", resolve("fruitbot").game)
    weights = torch.load(released / name, map_location="cpu", weights_only=True)
    obs = torch.rand(3, 3, 64, 64)

    def residual(x: Tensor, block: str) -> Tensor:
        y = x
        for layer in ("1", "3"):
            w, b = weights[f"{block}.model.{layer}.weight"], weights[f"{block}.model.{layer}.bias"]
            y = nn.functional.conv2d(y.relu(), w, b, padding=1)
        return x + y

    x = obs
    for stage in (0, 4, 8):
        x = nn.functional.conv2d(x, weights[f"model.{stage}.weight"], weights[f"model.{stage}.bias"], padding=1)
        x = nn.functional.max_pool2d(x, 3, 2, 1)
        x = residual(residual(x, f"model.{stage + 2}"), f"model.{stage + 3}")
    x = (x.flatten(1).relu() @ weights["model.14.weight"].T + weights["model.14.bias"]).relu()
    out = x @ weights["logits_fc.weight"].T + weights["logits_fc.bias"]
    logits, value = policy.network.logits_and_value(obs)
    torch.testing.assert_close(logits, out[:, :15], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(value, out[:, 15], atol=1e-5, rtol=1e-5)
    bcl.save(policy, tmp_path / "p.safetensors")
    assert bcl.load(tmp_path / "p.safetensors").spec.parent == f"radial-ppo:{name}"


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple:
        return (Path.touch, (self.target,))


def test_a_hostile_pickle_runs_nothing(tmp_path: Path) -> None:
    bomb = Bomb(tmp_path / "went-off")
    (tmp_path / "evil.pt").write_bytes(pickle.dumps({"model_state_dict": bomb}))
    torch.save({"model_state_dict": bomb}, tmp_path / "evil2.pt")
    for name in ("evil.pt", "evil2.pt"):
        with pytest.raises(WeightsError, match="cannot be read safely"):
            import_policy(tmp_path / name, "radial-dqn", resolve("pong").game)
    assert not bomb.target.exists()
    pickle.loads((tmp_path / "evil.pt").read_bytes())
    assert bomb.target.exists()  # it was a live one


def test_what_does_not_fit_is_refused_in_one_sentence(tmp_path: Path) -> None:
    pong, fruitbot = resolve("pong").game, resolve("fruitbot").game
    torch.save(ReferenceDueling(6).state_dict(), tmp_path / "six.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "text.pt").write_text("hello")
    torch.save({"a": torch.zeros(1)}, tmp_path / "other.pt")
    cases = [
        ("six.pt", "radial-dqn", pong, "6 actions but 'pong' has 4"),
        ("six.pt", "radial-ppo", fruitbot, "not a radial-ppo checkpoint"),
        ("six.pt", "radial-ppo", pong, "for Procgen games"),
        ("six.pt", "radial-dqn", fruitbot, "for Atari games"),
        ("six.pt", "onnx", pong, "unknown format"),
        ("list.pt", "radial-dqn", pong, "no state dict"),
        ("text.pt", "radial-dqn", pong, "cannot be read safely"),
        ("other.pt", "radial-dqn", pong, "not a radial-dqn checkpoint"),
        ("none.pt", "radial-dqn", pong, "not a file"),
    ]
    for name, format, game, words in cases:
        with pytest.raises(WeightsError, match=words) as caught:
            import_policy(tmp_path / name, format, game)
        assert "\n" not in str(caught.value)
