"""The files of a Pong run with numbers chosen by hand, without any training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bcl import experiment
from bcl.attacks import PGD, RIFGSM, Attack, suite
from bcl.config import Config, resolve_stages
from bcl.evaluation import Plan, Score
from bcl.evaluation.evaluation import append_score
from bcl.games import game_to_dict
from bcl.reports.frames import Frame, Frames
from bcl.runs import store
from bcl.runs.results import ScoresFolder

PGD30, RI = PGD(steps=30, step=0.1), RIFGSM()
AGENT = "f00dfeedf00dfeed"
START = "beefbeefbeefbeef"


def metrics(folder: Path, rows: list[tuple[int, float | None, float]]) -> None:
    """Rows of step, return and steps per second."""
    for step, value, rate in rows:
        row = {"step": step, "return": value, "steps_per_second": rate, "eps": 0.0}
        store.append_row(folder / "metrics.jsonl", row)


def played(
    folder: Path,
    config: Config,
    attack: Attack | None,
    eps: float,
    returns: tuple[float, ...],
    seed: int = 1,
    agent: str = AGENT,
) -> None:
    """A stored score."""
    score = Score(attack, eps, returns, (100,) * len(returns), 0.5 * (eps > 0), eps, 0.0, seed, "fixed")
    count = len(returns)
    append_score(ScoresFolder(folder), Plan(config.game, count, seed).conditions(agent, "cpu"), score)


def rewritten(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """The stored scores, each as `change` has it; none: without it."""
    rows = store.read_metrics(folder / "scores.jsonl")
    store.remove(folder / "scores.jsonl")
    for row in rows:
        if (changed := change(row)) is not None:
            store.append_row(folder / "scores.jsonl", changed)


def decision(
    folder: Path, index: int, eps: tuple[float, float], runs: list[int], kept: Any, seconds: float, **more: Any
) -> None:
    """A stored decision; `more`: next or stop, and tried."""
    candidates = [{"run": run, "met": True, "value": 40.0, "scores": {"0.0": 20.5}} for run in runs]
    made = {
        "phase": {"index": index, "start": eps[0], "eps": eps[1], "runs": 3},
        "thresholds": [20.0, 20.0],
        "candidates": candidates,
        "kept": kept,
        "best_phase": index,
        "tried": [],
        "next": None,
        "stop": None,
    }
    store.write_json(folder / f"phases/{index:03d}/decision.json", {"decision": made | more, "seconds": seconds})


def robust(*levels: int) -> list[dict[str, Any]]:
    return [{"eps": level / 255, "score": 20.0, "robust": True, "by": "score"} for level in levels]


@pytest.fixture(scope="session")
def make_pong_run() -> Callable[..., Path]:
    """Writes the run into a folder; unfinished: it was cut in its second phase, while run 1 trained."""

    def make(run: Path, finished: bool = True) -> Path:
        stages = resolve_stages("pong", recipe="bcl-mos-at", settings={"dqn": {"batch_size": 256}})
        config = stages[-1][1]
        experiment.create(run, stages, "cpu", None)
        vanilla, radial, at = (run / "stages" / name for name in ("1-vanilla", "2-radial", "3-at"))
        metrics(vanilla, [(100, None, 10.0), (200, -20.0, 10.0), (400, 20.0, 10.0)])  # 40 s
        metrics(radial, [(100, 20.0, 5.0), (300, 20.5, 10.0)])  # 20 + 20 s
        for folder in (vanilla, radial):
            store.write_json(folder / "result.json", {"policy": folder.name})
        decision(at, 0, (3 / 255, 3 / 255), ["incumbent"], "incumbent", 10.0, next=3, tried=robust(0, 4, 5))
        store.write_json(at / "clock.json", {"seconds": 110.0, "sessions": [[1000.0, 0.0]]})
        # One after the other, after 10 s of the stage: 15 s and 20 s of training, then scores.
        for k, rate, value, began, ended in ((1, 20.0, 12.0, 1010.0, 1030.0), (2, 15.0, 20.0, 1030.0, 1055.0)):
            folder = at / f"phases/003/run{k}"
            metrics(folder, [(150, 18.0, rate), (300, value, rate)])
            store.write_json(folder / "result.json", {"policy": f"phase3run{k}", "began": began, "ended": ended})
            played(folder / "evals", config, None, 0.0, (20.0, 21.0), seed=9)
            played(folder / "evals", config, PGD30, 6 / 255, (19.0, value), seed=9)
        decision(at, 3, (5 / 255, 6 / 255), [1, 2], 2, 60.0, next=4)
        # Side by side: 30 s and 38 s, done at 100 s and 102 s; the third diverged at once.
        fourth = at / "phases/004"
        metrics(fourth / "run1", [(300, 20.0, 10.0)])
        if not finished:
            return run
        metrics(fourth / "run2", [(380, 10.0, 10.0)])
        metrics(fourth / "run3", [(50, -21.0, 10.0)])
        for k, began, ended, result in (
            (1, 1060.0, 1100.0, {"policy": AGENT}),
            (2, 1060.0, 1102.0, {"policy": "other"}),
            (3, 1098.0, 1103.0, {"policy": "", "diverged": "training diverged"}),
        ):
            store.write_json(fourth / f"run{k}/result.json", result | {"began": began, "ended": ended})
        decision(at, 4, (6 / 255, 7 / 255), [1, 2, 3], 1, 110.0, stop="target reached", tried=robust(*range(8, 26)))
        store.write_json(at / "result.json", {"policy": AGENT, "reached": 25 / 255})

        evals = run / "evals"
        for attack, offset in zip(suite("paper"), (0.0, 0.5, 1.0, 0.25), strict=True):
            for level, value in ((10, 20.0), (20, 15.0), (25, 4.0)):
                played(evals, config, attack, level / 255, tuple(value + offset + d for d in (-1.0, 0.0, 1.0)))
        played(evals, config, None, 0.0, (20.0, 21.0, 21.0))
        played(evals, config, None, 0.0, (21.0, 21.0), seed=0)  # of a later call of bcl attack
        played(evals, config, PGD30, 1.0, (-21.0, -21.0, -21.0))  # of bcl attack --sanity
        scores = [row for row in store.read_metrics(evals / "scores.jsonl") if row["seed"] == 1 and row["eps"] < 1]
        scores.sort(key=lambda row: (row["eps"], row["attack"]))
        about = {"policy": AGENT, "final_score": 33.0, "flags": ["masking: made up"], "curriculum": "target reached"}
        about |= {"kept": "the agent of phase 4, trained up to 7/255", "reached": 25 / 255, "scores": scores}
        store.write_json(run / "result.json", about)
        for method, shares in (("ibp", (0.9, 0.2)), ("crown", (1.0, 0.75))):
            for level, acr in zip((1, 3), shares, strict=True):
                proof = {"eps": level / 255, "method": method, "acr": acr, "gwc": 20.0 * acr, "nominal": 20.5}
                about = {"game": game_to_dict(config.game), "policy": f"{AGENT} on cpu", "episodes": 20, "seed": 0}
                about |= {"acr_per_episode": [acr], "gwc_returns": [20.0 * acr]}
                store.write_json(run / f"certs/{method}-{level}.json", proof | about)
        return run

    return make


@pytest.fixture
def pong_run(tmp_path: Path, make_pong_run: Callable[..., Path]) -> Path:
    return make_pong_run(tmp_path / "pong-run")


@pytest.fixture(scope="session")
def pong_frames() -> Frames:
    """Two moments as an attack on images leaves them."""
    draws = np.random.default_rng(0)
    clean = draws.random((2, 1, 84, 84), dtype=np.float32)
    seen = (clean + 25 / 255 * draws.choice(np.float32([-1, 1]), clean.shape)).clip(0, 1)
    moments = [Frame(7, clean[0], seen[0], "left", "right", None), Frame(90, clean[1], seen[1], "fire", "left", None)]
    return Frames(PGD30, 0, 25 / 255, 200, 31, (), tuple(moments))
