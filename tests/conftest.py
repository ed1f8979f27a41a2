import os
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium
import pytest
import torch
from hypothesis import settings

from bcl.cli.main import main

# The same examples in every run of continuous integration; fresh ones at home. No deadlines: machines are shared.
settings.register_profile("default", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("default")


# Files that take long: begun last, one of them would run alone at the end.
SLOW = [
    *("test_ray_executor", "test_learned_adversary", "test_phases", "test_reports_damage", "test_pacing_learns"),
    *(
        "test_phases_beside",
        "test_examples",
        "test_cli_own_games",
        "test_commands_train",
        "test_page",
        "test_benchmarks",
    ),
    *(
        "test_run_repeats",
        "test_distill",
        "test_dqn_learns",
        "test_dqn_learns_cartpole",
        "test_play",
        "test_play_together",
    ),
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: SLOW.index(item.path.stem) if item.path.stem in SLOW else len(SLOW))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)  # tests run side by side


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_disks() -> Iterator[None]:
    """Written data need not outlast a power cut here; what is written before what: tests/runs/test_store.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def released() -> Path:
    """The folder of published checkpoints, where there is one."""
    folder = os.environ.get("BCL_RELEASED_WEIGHTS")
    if not folder or not Path(folder).is_dir():
        pytest.skip("no released weights: set BCL_RELEASED_WEIGHTS to their folder")
    return Path(folder)


@pytest.fixture(scope="module")
def short_games() -> Iterator[None]:
    """Episodes end after fewer than 500 steps: where the length of play proves nothing."""
    with pytest.MonkeyPatch.context() as patch:
        for game, steps in (("CartPole-v1", 60), ("Acrobot-v1", 200)):
            patch.setattr(gymnasium.registry[game], "max_episode_steps", steps)
        yield


@pytest.fixture
def in_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Run a command line in an empty folder; gives exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit:
            main(list(words))
        out, err = capsys.readouterr()
        return int(exit.value.code or 0), out, err

    return run
