"""The smallest budget that breaks an agent, on a game where it is known."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import bcl
from bcl.attacks import FGSM, Learned, UniformNoise
from bcl.config import resolve
from bcl.errors import ConfigError, StoreError
from bcl.evaluation import Breaking, Plan, find_breaking, read_breaking
from bcl.games import GymnasiumGame
from bcl.policies import Policy, PolicySpec
from bcl.policies.files import fingerprint, save
from bcl.reports.collect import collect
from bcl.reports.page import page
from bcl.runs import store
from bcl.runs.results import Results


class Keep(gymnasium.Env[np.ndarray, int]):
    """Four steps; action 1 earns 1. What is seen is always the same."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._time = 0
        return np.array([0.3], np.float32), {}

    def step(self, action):
        self._time += 1
        return np.array([0.3], np.float32), float(action), self._time == 4, False, {}


gymnasium.register("Keep-v0", Keep)
GAME = GymnasiumGame("Keep-v0", scale=(1.0,))


def keeper() -> Policy:
    """Action 1 while it sees more than 0: FGSM needs a little above 0.3."""
    policy = Policy(PolicySpec("plain-mlp", (1,), 2, (-1.0,), (1.0,), (), game=GAME))
    with torch.no_grad():
        policy.network.model[1].weight.copy_(torch.tensor([[0.0], [1.0]]))
        policy.network.model[1].bias.zero_()
    return policy.eval()


def test_the_budget_is_found_within_a_64th(tmp_path: Path) -> None:
    policy = keeper()
    found = find_breaking(policy, Plan(GAME, 2), [FGSM(), UniformNoise()], Results(tmp_path))
    assert (found.nominal, found.threshold) == (4, 2)
    fgsm, noise = found.budgets
    assert fgsm is not None
    assert 0.3 <= fgsm <= 0.3 * (1 + 1 / 64)
    assert noise is None or noise > fgsm
    assert found.smallest == (fgsm, FGSM())
    played = "(4 without attack; 2 episodes, evaluation seed 0)"
    assert str(found) == f"smallest budget that brings the return below 2: {fgsm:.3g} under FGSM {played}"
    assert read_breaking(Results(tmp_path), fingerprint(policy)) == [found]
    assert read_breaking(Results(tmp_path), "somebody else") == []
    played = [
        row
        for row in store.read_metrics(Results(tmp_path).search.path / "scores.jsonl")
        if row["attack"].startswith("FGSM")
    ]
    assert len(played) == 11 + 2 * 7  # three rounds, ends not played again


def test_an_agent_that_nothing_breaks(tmp_path: Path) -> None:
    policy = keeper()
    with torch.no_grad():
        policy.network.model[1].bias[1] = 9.0
    found = find_breaking(policy, Plan(GAME, 2), [FGSM()], Results(tmp_path))
    assert (found.budgets, found.smallest) == ((None,), None)
    assert str(found) == "no budget brings the return below 2 (4 without attack; 2 episodes, evaluation seed 0)"


def test_what_cannot_be_searched_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trained at every budget"):
        find_breaking(keeper(), Plan(GAME, 2), [Learned()], Results(tmp_path))
    save(keeper(), tmp_path / "keeper.safetensors")
    with pytest.raises(ConfigError, match="trained at every budget"):
        bcl.evaluate(tmp_path / "keeper.safetensors", attacks="learned", eps=0.1, episodes=1, find_eps=True)
    assert not (tmp_path / "keeper.results").exists()  # refused before anything was played
    with pytest.raises(ConfigError, match="below the threshold already"):
        find_breaking(keeper(), Plan(GAME, 2), [FGSM()], Results(tmp_path), threshold=5.0)
    with pytest.raises(ConfigError, match="--find-eps"):
        bcl.evaluate(keeper(), threshold=1.0)
    for threshold in (float("nan"), float("-inf"), "low"):
        with pytest.raises(ConfigError, match="threshold"):
            bcl.evaluate(keeper(), find_eps=True, threshold=threshold)


def test_a_stored_search_without_a_threshold_is_told(tmp_path: Path) -> None:
    find_breaking(keeper(), Plan(GAME, 2), [FGSM()], Results(tmp_path))
    file = Results(tmp_path).searches.path / "searches.jsonl"
    [stored] = store.read_metrics(file)
    file.unlink()
    store.append_row(file, stored | {"threshold": None})
    with pytest.raises(StoreError, match="find the budget again"):
        read_breaking(Results(tmp_path), fingerprint(keeper()))


def test_a_weaker_attack_that_is_searched_with_later_leaves_the_number(tmp_path: Path) -> None:
    policy, results = keeper(), Results(tmp_path)
    first = find_breaking(policy, Plan(GAME, 2), [FGSM()], results)
    later = find_breaking(policy, Plan(GAME, 2), [UniformNoise()], results)
    assert (later.attacks, later.smallest) == ((FGSM(), UniformNoise()), first.smallest)
    # Under other conditions, or with another threshold, it is another number.
    others = [
        find_breaking(policy, Plan(GAME, 2, seed=1), [UniformNoise()], results),
        find_breaking(policy, Plan(GAME, 2, starts="varied"), [UniformNoise()], results),
        find_breaking(policy, Plan(GAME, 2, protocol="first"), [UniformNoise()], results),
        find_breaking(policy, Plan(GAME, 2), [UniformNoise()], results, threshold=3.5),
    ]
    assert all(one.attacks == (UniformNoise(),) for one in others)
    assert read_breaking(results, fingerprint(policy)) == [later, *others]
    rows = (results.searches.path / "searches.jsonl").read_text()
    assert find_breaking(policy, Plan(GAME, 2), [FGSM()], results) == later
    assert (results.searches.path / "searches.jsonl").read_text() == rows  # nothing new


def test_a_search_says_which_episodes_it_played(tmp_path: Path) -> None:
    played = [
        find_breaking(keeper(), Plan(GAME, 2, protocol=protocol, starts=starts), [FGSM()], Results(tmp_path)).played
        for protocol, starts in (("fixed", "varied"), ("first", "game"))
    ]
    assert played == [
        "2 episodes with varied starts, evaluation seed 0",
        "2 episodes (the first finished of 64 copies), evaluation seed 0",
    ]
    conditions = Plan(resolve("fruitbot").game, 2).conditions("f00d", "cpu")
    found = Breaking(2.0, 4.0, 2, 0, (), True, (), conditions)
    assert found.played == "2 episodes on the training levels, evaluation seed 0"


def test_the_search_of_an_earlier_version_is_shown_beside_later_ones(tmp_path: Path) -> None:
    file = tmp_path / "keeper.safetensors"
    save(keeper(), file)
    results = Results.beside(file)
    old = Breaking(2.0, 4.0, 3, 7, (FGSM(),), False, (0.25,))
    store.write_json(results.searches.path / "result.json", old.to_dict() | {"policy": fingerprint(keeper())})
    found = bcl.evaluate(file, attacks="noise", episodes=2, device="cpu", find_eps=True)
    assert collect(file).breaking == (found.breaking, old)
    assert "0.25 under FGSM (4 without attack; 3 episodes, evaluation seed 7)." in page(collect(file))


def test_the_lowest_return_counts_where_it_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bcl.games.LOWEST_RETURNS, "Keep-v0", -4.0)
    assert find_breaking(keeper(), Plan(GAME, 2), [FGSM()], Results(tmp_path)).threshold == 0


def test_a_threshold_may_lie_below_the_lowest_return_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bcl.games.LOWEST_RETURNS, "Keep-v0", 5.0)
    with pytest.raises(ConfigError, match="below the threshold already"):
        find_breaking(keeper(), Plan(GAME, 2), [FGSM()], Results(tmp_path))
    assert find_breaking(keeper(), Plan(GAME, 2), [FGSM()], Results(tmp_path), threshold=3.0).threshold == 3


def test_the_command_and_the_report_show_it(in_folder, tmp_path: Path) -> None:
    save(keeper(), tmp_path / "keeper.safetensors")
    attack = ("attack", "keeper.safetensors", "--attack", "fgsm", "--episodes", "2", "--device", "cpu", "--find-eps")
    code, out, err = in_folder(*attack)
    assert code == 0, err
    assert "breaks at" in out
    assert "smallest budget that brings the return below 2: 0.3" in out
    assert "smallest budget that brings the return below 2: 0.3" in page(collect(Path("keeper.safetensors")))
