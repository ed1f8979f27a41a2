"""Both of Procgen's sets of levels in one pass: the scores of each set alone, stored as they are."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import bcl
from bcl.attacks import PGD, Learned
from bcl.config import resolve
from bcl.errors import ConfigError
from bcl.evaluation import Cell, Plan, Score, cells, game_for_evaluation, on_each, run_suite, suite
from bcl.experiment import learned_adversary
from bcl.games import ProcgenGame
from bcl.policies import Policy, PolicySpec
from bcl.policies.files import save
from bcl.runs.results import ScoresFolder

pytest.importorskip("procgen")

GAME = resolve("fruitbot").game
GAMES = [game_for_evaluation(GAME, levels, 0) for levels in ("train", "eval")]
ATTACK = PGD(2, 0.5)
WANTED = cells([ATTACK], [10 / 255, 0.5])
PLAN = Plan(GAMES[0], episodes=3, seed=4, num_envs=2)
WORDS: dict[str, Any] = {"attacks": ATTACK, "eps": [10 / 255, 0.5], "episodes": 2, "device": "cpu"}
Cli = Callable[..., tuple[int, str, str]]


def untrained(game: ProcgenGame) -> Policy:
    """Cheaper than IMPALA."""
    torch.manual_seed(0)
    return Policy(PolicySpec("plain-cnn", (3, 64, 64), 15, (0.0,), (1.0,), (), game=game)).eval()


@pytest.fixture
def policy() -> Policy:
    assert isinstance(GAME, ProcgenGame)
    return untrained(GAME)


@pytest.fixture
def file(policy: Policy, tmp_path: Path) -> Path:
    save(policy, tmp_path / "p.safetensors")
    return tmp_path / "p.safetensors"


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The cells that were played together, pass by pass."""
    found: list[list[str]] = []
    played = suite.evaluate_cells

    def spy(policy: Policy, envs: object, wanted: list[Cell], *others: Any) -> Any:
        found.append([cell.label for cell in wanted])
        return played(policy, envs, wanted, *others)

    monkeypatch.setattr(suite, "evaluate_cells", spy)
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[list[Score]]:
    """The scores of each set, evaluated for itself."""
    assert isinstance(GAME, ProcgenGame)
    plans = [dataclasses.replace(PLAN, game=game) for game in GAMES]
    return [[*run_suite(untrained(GAME), p, WANTED, ScoresFolder(tmp_path_factory.mktemp("one")))] for p in plans]


@pytest.mark.parametrize("width", [1, 4, 6])
def test_each_set_has_the_scores_it_has_alone(
    policy: Policy,
    alone: list[list[Score]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    passes: list[list[str]],
    width: int,
) -> None:
    assert alone[0] != alone[1]
    assert any(score.changed for score in alone[0])
    monkeypatch.setattr(suite, "cells_at_once", lambda policy, plan: width)
    together = [*run_suite(policy, PLAN, on_each(GAMES, WANTED), ScoresFolder(tmp_path / "both"))]
    assert [together[::2], together[1::2]] == alone
    assert [*map(len, passes)] == {1: [1] * 6, 4: [4, 2], 6: [6]}[width]


def test_one_image_network_of_the_paper_decides_alike_on_rows_of_both_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bcl.api.measuring import untrained_policy

    impala = untrained_policy(GAME, "cpu")
    plan = Plan(GAMES[0], episodes=1, num_envs=1)
    wanted = [Cell(ATTACK, 10 / 255)]
    alone = [
        *run_suite(impala, plan, wanted, ScoresFolder(tmp_path / "train")),
        *run_suite(impala, dataclasses.replace(plan, game=GAMES[1]), wanted, ScoresFolder(tmp_path / "eval")),
    ]
    monkeypatch.setattr(suite, "cells_at_once", lambda policy, plan: 2)
    together = [*run_suite(impala, plan, on_each(GAMES, wanted), ScoresFolder(tmp_path / "both"))]
    assert [score.returns for score in together] == [score.returns for score in alone]


def test_what_was_played_of_one_set_is_not_played_again(file: Path, passes: list[list[str]]) -> None:
    train = bcl.evaluate(file, env_set="train", **WORDS)
    passes.clear()
    both = bcl.evaluate(file, env_set="both", **WORDS)
    assert [label for one in passes for label in one] == [
        "nominal on unlimited levels", "PGD-2 at 10/255 on unlimited levels", "PGD-2 at 0.5 on unlimited levels",
    ]  # fmt: skip
    passes.clear()
    unlimited = bcl.evaluate(file, env_set="eval", **WORDS)
    assert passes == []
    assert both.unlimited is not None
    assert (both.scores, both.unlimited.scores) == (train.scores, unlimited.scores)
    assert (both.levels, both.unlimited.levels) == ("train", "eval")
    assert (both.flags, both.unlimited.flags) == (train.flags, unlimited.flags)
    assert train.unlimited is None
    bcl.evaluate(file, env_set="both", **WORDS)
    assert passes == []


def test_both_sets_are_shown(file: Path) -> None:
    found = bcl.evaluate(file, env_set="both", **WORDS)
    assert found.unlimited is not None
    title = "mean return ± standard error, 2 episodes, seed 0"
    assert str(found).count("\n") == 2 * str(found.unlimited).count("\n") + 1
    assert f"fruitbot on the training levels: {title}\n" in str(found)
    assert str(found).endswith(f"\n{found.unlimited}")
    assert [table.title for table in found._tables()] == [
        f"fruitbot on the training levels: {title}", f"fruitbot on unlimited levels: {title}",
    ]  # fmt: skip
    rows = [*found._rows()]
    assert [row["unlimited_levels"] for row in rows] == [False] * 3 + [True] * 3
    assert [row["mean"] for row in rows] == [score.mean for score in (*found.scores, *found.unlimited.scores)]
    assert "unlimited_levels" not in next(iter(found.unlimited._rows()))
    assert found.to_dict()["unlimited"] == found.unlimited.to_dict()
    assert found.unlimited.to_dict()["unlimited"] is None


def test_the_command_prints_both_sets_and_says_of_each_score_which_it_is_of(in_folder: Cli, file: Path) -> None:
    words = ["attack", file.name, "--attack", "fgsm", "--eps", "10/255", "--episodes", "2", "--env-set", "both"]
    code, out, err = in_folder(*words)
    assert code == 0, err
    assert out.index("fruitbot on the training levels: mean") < out.index("fruitbot on unlimited levels: mean")
    assert out.count("worst within") == 2
    assert out.endswith("next: bcl attack p.safetensors --suite strong --eps 10/255 --episodes 2 --env-set both\n")
    for label in ("no attack", "FGSM at 10/255"):
        assert err.count(f"{label} on the training levels: ") == err.count(f"{label} on unlimited levels: ") == 1
    data = json.loads(in_folder(*words, "--json")[1])
    assert (data["game"]["num_levels"], data["unlimited"]["game"]["num_levels"]) == (200, 0)


def test_processes_that_share_both_sets_find_what_one_does(file: Path, policy: Policy, tmp_path: Path) -> None:
    save(policy, tmp_path / "other" / "p.safetensors")
    words = WORDS | {"attacks": "pgd-2"}
    one = bcl.evaluate(file, env_set="both", **words)
    two = bcl.evaluate(tmp_path / "other" / "p.safetensors", env_set="both", parallel=2, **words)
    assert one.unlimited is not None
    assert two.unlimited is not None
    assert (one.scores, one.unlimited.scores) == (two.scores, two.unlimited.scores)


def test_sanity_has_a_floor_of_each_set(file: Path, passes: list[list[str]]) -> None:
    words = WORDS | {"eps": 10 / 255, "sanity": True}
    both = bcl.evaluate(file, env_set="both", **words)
    passes.clear()
    assert both.unlimited is not None
    for found, levels in ((both, "train"), (both.unlimited, "eval")):
        alone = bcl.evaluate(file, env_set=levels, **words)
        assert (found.scores, found.floor, found.flags) == (alone.scores, alone.floor, alone.flags)
        assert found.floor is not None
    assert passes == []
    assert both.floor != both.unlimited.floor


def test_progress_is_of_both_sets(policy: Policy, tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    progress = lambda label: lambda done, of: told.append((label, done / of))  # noqa: E731
    wanted = on_each(GAMES, [Cell(None, 0.0)])
    scores = [*run_suite(policy, PLAN, wanted, ScoresFolder(tmp_path), progress)]
    assert len(told) >= sum(max(score.lengths) for score in scores)
    assert [*dict.fromkeys(label for label, _ in told)] == [
        "nominal on the training levels", "nominal on unlimited levels",
    ]  # fmt: skip
    assert max(share for _, share in told) <= 1


def test_an_adversary_is_trained_on_the_levels_it_is_played_on(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = []

    def stop(folder: Path, config: Any, *_: object, **__: object) -> None:
        trained.append((folder, config.game.num_levels))
        raise KeyboardInterrupt

    monkeypatch.setattr(learned_adversary, "train_run", stop)
    begun: list[str] = []
    make_ready = learned_adversary.ready(
        policy, PLAN, ScoresFolder(tmp_path), lambda label: begun.append(label) or (lambda done, of: None)
    )
    for cell in on_each(GAMES, [Cell(Learned(1000), 10 / 255)]):
        with pytest.raises(KeyboardInterrupt):
            make_ready(cell)
    assert [levels for _, levels in trained] == [200, 0]
    assert trained[0][0] != trained[1][0]
    assert [label.partition(",")[0] for label in begun] == [
        "training the adversary at 10/255 on the training levels", "training the adversary at 10/255 on unlimited levels",
    ]  # fmt: skip


def test_what_has_no_two_sets_is_refused(policy: Policy) -> None:
    with pytest.raises(ConfigError, match="--find-eps searches on one set of levels; give --env-set train or"):
        bcl.evaluate(policy, env_set="both", find_eps=True, **WORDS)
    assert isinstance(GAME, ProcgenGame)
    with pytest.raises(ConfigError, match="was trained on unlimited levels, so that there is no other set"):
        bcl.evaluate(untrained(dataclasses.replace(GAME, num_levels=0)), env_set="both", **WORDS)


def test_certificates_say_on_which_levels_they_are(policy: Policy) -> None:
    train, unlimited = (
        bcl.certify(policy, eps=1e-6, method="ibp", episodes=1, env_set=levels, device="cpu")
        for levels in ("train", "eval")
    )
    assert train.title == "fruitbot on the training levels: certificates by ibp"
    assert unlimited.title == "fruitbot on unlimited levels: certificates by ibp"
