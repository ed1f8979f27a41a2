"""Agents that Stable-Baselines3 trained here, and zips that lie about being one."""

import base64
import dataclasses
import json
import pickle
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bcl
from bcl.config import resolve
from bcl.errors import GameError, WeightsError
from bcl.games import AtariGame, GymnasiumGame, ProcgenGame
from bcl.policies.importers import import_policy

sb3 = pytest.importorskip("stable_baselines3")
sb3_envs = pytest.importorskip("stable_baselines3.common.envs")
vec_env = pytest.importorskip("stable_baselines3.common.vec_env")

CARTPOLE = GymnasiumGame("CartPole-v1")
PPO_SMALL = {"n_steps": 64, "batch_size": 32}
AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "dqn": ("DQN", {"buffer_size": 1000, "learning_starts": 50}),
    "ppo": ("PPO", PPO_SMALL),
    "a2c": ("A2C", {}),
    "ppo-relu": (
        "PPO",
        PPO_SMALL | {"policy_kwargs": {"net_arch": {"pi": [32], "vf": [16, 16]}, "activation_fn": nn.ReLU}},
    ),
    "dqn-tanh": (
        "DQN",
        {
            "buffer_size": 1000,
            "learning_starts": 50,
            "policy_kwargs": {"net_arch": [8, 16, 8], "activation_fn": nn.Tanh},
        },
    ),
    "ppo-elu": ("PPO", PPO_SMALL | {"policy_kwargs": {"activation_fn": nn.ELU}}),
    "a2c-linear": ("A2C", {"policy_kwargs": {"net_arch": []}}),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Path]]:
    """A trained agent and its zip, by name."""
    folder, agents = tmp_path_factory.mktemp("sb3"), {}

    def train(name: str) -> tuple[Any, Path]:
        if name not in agents:
            algorithm, settings = AGENTS[name]
            agents[name] = getattr(sb3, algorithm)("MlpPolicy", "CartPole-v1", device="cpu", seed=0, **settings)
            agents[name].learn(300).save(folder / f"{name}.zip")
        return agents[name], folder / f"{name}.zip"

    return train


def log_scores(agent: Any, raw: Tensor) -> Tensor:
    """What the agent itself computes: Q-values, or log-probabilities."""
    if isinstance(agent, sb3.DQN):
        return agent.q_net(raw)
    return agent.policy.get_distribution(raw).distribution.logits


def repack(source: Path, target: Path, change: Callable[[dict[str, Any]], None] = dict.copy, **members: bytes) -> Path:
    """The same zip with other `data`, or with other members (`policy` for `policy.pth`)."""
    with zipfile.ZipFile(source) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    data = json.loads(content["data"])
    change(data)
    content |= {"data": json.dumps(data).encode()}
    content |= {{"policy": "policy.pth"}.get(name, name): member for name, member in members.items()}
    with zipfile.ZipFile(target, "w") as archive:
        for name, member in content.items():
            archive.writestr(name, member)
    return target


def saved(weights: object) -> bytes:
    file = BytesIO()
    torch.save(weights, file)
    return file.getvalue()


def weights_of(path: Path) -> dict[str, Tensor]:
    with zipfile.ZipFile(path) as archive:
        return torch.load(BytesIO(archive.read("policy.pth")), weights_only=True)


def refused(path: Path, words: str, game: Any = CARTPOLE) -> None:
    with pytest.raises(WeightsError, match=words) as caught:
        import_policy(path, "sb3", game)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", AGENTS)
def test_the_policy_scores_and_acts_as_the_agent_does(trained, tmp_path: Path, name: str) -> None:
    agent, path = trained(name)
    bcl.save(import_policy(path, "sb3", CARTPOLE), tmp_path / "policy.safetensors")
    policy = bcl.load(tmp_path / "policy.safetensors")
    raw = torch.randn(500, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 2.0, 0.1, 2.0])
    with torch.no_grad():
        ours, theirs = policy(raw / torch.tensor([2.4, 3.0, 0.21, 3.0])), log_scores(agent, raw)
    torch.testing.assert_close(ours if "dqn" in name else ours.log_softmax(1), theirs, atol=1e-5, rtol=1e-5)
    clear = theirs.diff(dim=1).abs().flatten() > 1e-4  # a tie may break either way
    actions = torch.from_numpy(agent.predict(raw.numpy(), deterministic=True)[0])
    assert clear.sum() > 400
    assert torch.equal(ours.argmax(1)[clear], actions[clear])
    other = {"ppo-elu": "elu", "ppo-relu": "relu", "dqn": "relu"}
    assert policy.spec.activation == other.get(name, "tanh")
    assert policy.spec.parent == f"sb3:{name}.zip"
    assert policy.spec.algo == ("dqn" if "dqn" in name else "ppo")


@pytest.mark.parametrize("scale", [(), (1.0, 2.0, 3.0, 4.0)])
def test_the_policy_fits_what_the_environment_shows(trained, scale: tuple[float, ...]) -> None:
    agent, path = trained("dqn")
    game = dataclasses.replace(CARTPOLE, scale=scale)
    policy, envs = import_policy(path, "sb3", game), bcl.make_env(game, 1)
    raw, _ = gymnasium.make(game.id).reset(seed=5)
    torch.testing.assert_close(policy(envs.reset(5)), log_scores(agent, torch.from_numpy(raw)[None]))
    assert (policy.spec.low, policy.spec.high) == (envs.low, envs.high)
    envs.close()


def test_the_command_needs_no_stable_baselines3(trained, tmp_path: Path) -> None:
    out = tmp_path / "policy.safetensors"
    words = ["import", str(trained("a2c")[1]), "--format", "sb3", "--game", "CartPole-v1", "--out", str(out)]
    code = "import sys; sys.modules['stable_baselines3'] = None; from bcl.cli.main import main; main()"
    subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True)
    assert bcl.load(out).spec.game == resolve("CartPole-v1").game


TINY_PPO = {"steps": 128, "num_envs": 8, "rollout": 8, "batch_size": 32}


@pytest.mark.parametrize("name", ["ppo-relu", "a2c-linear", "dqn-tanh"])
def test_training_goes_on_with_the_learner_and_the_layers_of_the_file(trained, tmp_path: Path, name: str) -> None:
    file = tmp_path / "policy.safetensors"
    bcl.save(import_policy(trained(name)[1], "sb3", CARTPOLE), file)
    dqn = {"steps": 160, "num_envs": 8, "batch_size": 16, "replay_initial": 32}
    settings = {"dqn": dqn} if name == "dqn-tanh" else {"ppo": TINY_PPO}
    judged = {"episodes": 1, "eps": ["0.1"]}
    run = bcl.train("cartpole", recipe="at", init=file, out=tmp_path / "run", evaluation=judged, **settings)
    spec = bcl.load(run).spec
    assert (spec.hidden, spec.activation) == (bcl.load(file).spec.hidden, bcl.load(file).spec.activation)
    assert spec.algo == ("dqn" if name == "dqn-tanh" else "ppo")
    with pytest.raises(WeightsError, match=f"was made for {spec.algo} and not for .*; leave out --algo"):
        bcl.train("cartpole", init=file, out=tmp_path / "x", algo="ppo" if spec.algo == "dqn" else "dqn")


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple:
        return (Path.touch, (self.target,))


def test_hostile_pickles_run_nothing(trained, tmp_path: Path) -> None:
    source, target = trained("ppo-relu")[1], tmp_path / "went-off"
    bomb = pickle.dumps(Bomb(target))
    pickle.loads(bomb)
    assert target.exists(), "the bomb is live"
    target.unlink()

    def arm(data: dict[str, Any]) -> None:
        for value in data.values():
            if isinstance(value, dict) and ":serialized:" in value:
                value[":serialized:"] = base64.b64encode(bomb).decode()

    armed = repack(source, tmp_path / "armed.zip", arm, **{"pytorch_variables.pth": bomb, "policy.optimizer.pth": bomb})
    obs = torch.rand(5, 4)
    assert torch.equal(import_policy(armed, "sb3", CARTPOLE)(obs), import_policy(source, "sb3", CARTPOLE)(obs))
    refused(repack(source, tmp_path / "raw.zip", policy=bomb), "cannot be read safely")
    for weights in (Bomb(target), weights_of(source) | {"action_net.bias": Bomb(target)}):
        refused(repack(source, tmp_path / "evil.zip", policy=saved(weights)), "it asks to run code")

    def hide(data: dict[str, Any]) -> None:
        data["policy_kwargs"] = {key: data["policy_kwargs"][key] for key in (":type:", ":serialized:")}

    refused(repack(armed, tmp_path / "hidden.zip", hide), "does not say in plain text")
    assert not target.exists()


def test_other_agents_are_refused(tmp_path: Path) -> None:
    image = partial(sb3_envs.FakeImageEnv, screen_height=36, screen_width=36, n_channels=1)
    normal = vec_env.VecNormalize(vec_env.DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]))
    leaky = {"activation_fn": nn.LeakyReLU}
    agents = {
        "has a CNN policy; only .* with the MlpPolicy": sb3.PPO(
            "CnnPolicy", image(discrete=True), device="cpu", **PPO_SMALL
        ),
        "has a CNN policy": sb3.DQN("CnnPolicy", image(discrete=True), device="cpu", buffer_size=10),
        "acts in a space": sb3.PPO("MlpPolicy", "Pendulum-v1", device="cpu", **PPO_SMALL),
        "acts in a space of type .*Box": sb3.SAC("MlpPolicy", "Pendulum-v1", device="cpu", buffer_size=10),
        "VecNormalize": sb3.PPO("MlpPolicy", normal, device="cpu", **PPO_SMALL).learn(1),
        "activation.LeakyReLU": sb3.A2C("MlpPolicy", "CartPole-v1", device="cpu", policy_kwargs=leaky),
        "4 inputs and 2 actions, but .* has 6 and 3": sb3.A2C("MlpPolicy", "CartPole-v1", device="cpu"),
    }
    for words, agent in agents.items():
        agent.save(tmp_path / "agent.zip")
        refused(tmp_path / "agent.zip", words, GymnasiumGame("Acrobot-v1") if "6 and 3" in words else CARTPOLE)
        if "CNN" in words:  # whatever the game is: none would do
            refused(tmp_path / "agent.zip", words, AtariGame("pong"))


def test_agents_behind_vecnormalize_take_their_statistics_along(tmp_path: Path) -> None:
    envs = vec_env.VecNormalize(vec_env.DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]))
    agent = sb3.PPO("MlpPolicy", envs, device="cpu", seed=0, **PPO_SMALL).learn(300)
    agent.save(tmp_path / "agent.zip")
    statistics = {"mean": envs.obs_rms.mean, "var": envs.obs_rms.var, "epsilon": envs.epsilon}
    np.savez(tmp_path / "stats.npz", **statistics)
    policy = import_policy(tmp_path / "agent.zip", "sb3", CARTPOLE, tmp_path / "stats.npz")
    raw = torch.randn(200, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([0.1, 0.3, 0.03, 0.3])
    shown = torch.from_numpy(envs.normalize_obs(raw.numpy()))
    with torch.no_grad():
        ours, theirs = policy(raw / torch.tensor([2.4, 3.0, 0.21, 3.0])), log_scores(agent, shown)
    torch.testing.assert_close(ours.log_softmax(1), theirs, atol=1e-4, rtol=1e-4)

    refused(tmp_path / "agent.zip", "--normalise FILE.npz")
    np.savez(tmp_path / "short.npz", mean=[0.0], var=[1.0])
    np.savez(tmp_path / "other.npz", average=[0.0])
    np.savez(tmp_path / "objects.npz", mean=np.array([None]), var=[1.0])
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps([0.0]))
    np.savez(tmp_path / "negative.npz", mean=[0.0] * 4, var=[1.0, 1.0, 1.0, -1.0])
    np.savez(tmp_path / "below.npz", mean=[0.0] * 4, var=[0.0] * 4, epsilon=-1.0)
    plain = r"pickled objects, which are never read\); write plain numbers with np.savez"
    no_zip = r"it is no npz file\); write plain numbers with np.savez"
    np.savez(tmp_path / "infinite.npz", mean=[np.nan] * 4, var=[1.0] * 4)
    np.savez(tmp_path / "complex.npz", mean=[1j] * 4, var=[1.0] * 4)
    (tmp_path / "text.npz").write_text("0 0 0 0")
    for name, words in (
        *(("short", "4 means and variances"), ("other", "no statistics"), ("none", "no statistics")),
        *(("objects", plain), ("pickle", no_zip), ("text", no_zip)),
        *(("infinite", "not finite, or deviations of 0"), ("complex", "no statistics")),
        *(("negative", "negative variance or epsilon; write"), ("below", "negative variance or epsilon; write")),
    ):
        with pytest.raises(WeightsError, match=words):
            import_policy(tmp_path / "agent.zip", "sb3", CARTPOLE, tmp_path / f"{name}.npz")


def test_the_command_says_what_of_vecnormalize_is_applied(
    trained, in_folder: Callable[..., tuple[int, str, str]]
) -> None:
    np.savez("stats.npz", mean=[0.0] * 4, var=[1.0] * 4, epsilon=1e-8)
    words = ["import", str(trained("ppo")[1]), "--format", "sb3", "--game", "cartpole", "--out"]
    code, out, _ = in_folder(*words, "normal.safetensors", "--normalise", "stats.npz")
    assert code == 0
    told = "observations are normalised by stats.npz in the first layer; they are not clipped (VecNormalize's clip_obs)"
    assert told in out.splitlines()
    assert "clip" not in in_folder(*words, "plain.safetensors")[1]


def test_the_line_of_the_documentation_exports_all_that_is_read() -> None:
    page = (Path(__file__).parents[2] / "docs" / "runs.md").read_text()
    [line] = re.findall(r'np\.savez\("stats.npz", (.*?)\)`', page)
    assert [part.partition("=")[0] for part in line.split(", ")] == ["mean", "var", "epsilon"]


def test_other_games_are_refused(trained) -> None:
    path = trained("dqn")[1]
    refused(path, "for Gymnasium games", ProcgenGame("fruitbot"))
    for game, words in (
        ("Pendulum-v1", "only Discrete actions"),
        ("FrozenLake-v1", "only Box observations"),
        ("NoSuchGame-v0", "cannot make"),
    ):
        with pytest.raises(GameError, match=words):
            import_policy(path, "sb3", GymnasiumGame(game))


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        ("observes a space of type .*Dict", "observation_space", {":type:": "<class 'gymnasium.spaces.dict.Dict'>"}),
        ("acts in a space of type .*MultiDiscrete", "action_space", {":type:": "<class 'x.MultiDiscrete'>"}),
        ("acts in a space of type None", "action_space", None),
        ("module 'sb3_contrib", "policy_class", {"__module__": "sb3_contrib.common.recurrent.policies"}),
        ("plain text", "policy_class", "DQNPolicy"),
        ("plain text", "policy_kwargs", None),
        ("made with 'features_extractor_class'", "policy_kwargs", {"features_extractor_class": "x", "net_arch": [4]}),
        ("made with 'squash_output'", "policy_kwargs", {"squash_output": True}),
        ("activations of type", "policy_kwargs", {"activation_fn": "<function <lambda> at 0x7f>\n" * 9}),
    ],
)
def test_descriptions_that_do_not_fit_are_refused(trained, tmp_path: Path, words: str, key: str, value: object) -> None:
    refused(repack(trained("dqn")[1], tmp_path / "x.zip", lambda data: data.update({key: value})), words)


def test_weights_that_do_not_fit_are_refused(trained, tmp_path: Path) -> None:
    source = trained("dqn")[1]
    weights = weights_of(source)
    first = "q_net.q_net.0.weight"
    cases: dict[str, object] = {
        "it has 'log_std'": weights | {"log_std": torch.zeros(2)},
        "it has 'q_net.q_net.1.weight'": weights | {"q_net.q_net.1.weight": torch.ones(64)},
        "lacks 'q_net.q_net.2.bias'": {name: w for name, w in weights.items() if name != "q_net.q_net.2.bias"},
        "it lacks 'q_net.q_net.0.bias'": {},
        "do not fit together": weights | {"q_net.q_net.2.weight": torch.zeros(64, 63)},
        "63 inputs and 2": weights | {first: torch.zeros(64, 63)},
        "has weights that are not finite": weights | {first: torch.full((64, 4), torch.nan)},
        "no state dict": [1, 2],
        "no state dict of plain tensors": weights | {first: torch.zeros(64, 4, dtype=torch.int64)},
        "of plain tensors": weights | {first: torch.zeros(64, 4).to_sparse()},
        "its weights are too large": weights | {first: torch.zeros(1).expand(1 << 20, 1 << 20)},
    }
    for words, case in cases.items():
        refused(repack(source, tmp_path / "x.zip", policy=saved(case)), words)
    precise = {name: nn.Parameter(w.double()) for name, w in weights.items()}
    policy = import_policy(repack(source, tmp_path / "x.zip", policy=saved(precise)), "sb3", CARTPOLE)
    obs = torch.rand(5, 4)
    assert torch.equal(policy(obs), import_policy(source, "sb3", CARTPOLE)(obs))


def test_damaged_and_oversized_zips_are_refused(trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = trained("dqn")[1]
    whole = source.read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "flipped.zip").write_bytes(whole.replace(b'"policy_class"', b'"policy_klass"'))
    (tmp_path / "text.zip").write_text("hello")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with zipfile.ZipFile(tmp_path / "odd.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("data", "{}")
    for name in ("cut", "flipped", "text"):
        refused(tmp_path / f"{name}.zip", "cannot be read safely as an SB3 agent")
    refused(tmp_path / "other.zip", "it has no 'data'")
    refused(tmp_path / "odd.zip", "unusual way")
    refused(tmp_path / "none.zip", "not a file")
    refused(repack(source, tmp_path / "x.zip", data=b"[" * 100_000), "cannot be read safely")
    refused(repack(source, tmp_path / "x.zip", data=b"[]"), "no state dict")

    packed = BytesIO()  # small on disk, and within the bound itself
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(1 << 20))
    monkeypatch.setattr("bcl.policies.importers.MAX_BYTES", 1 << 16)
    refused(repack(source, tmp_path / "x.zip", data=bytes(1 << 20)), "its 'data' is too large")
    refused(repack(source, tmp_path / "x.zip", policy=packed.getvalue()), "its 'policy.pth' is too large")
