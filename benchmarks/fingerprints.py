"""Fingerprints of weights, scores and decisions of three short trainings with a fixed seed: do two commits train alike?

    python benchmarks/fingerprints.py --out before.json
    python benchmarks/fingerprints.py --like before.json --out after.json

The first line is for a checkout of one commit, the second for one of the other (with PYTHONPATH=. the bcl of the
checkout is imported). They hold for one machine and one version of PyTorch. Each training is made twice, the second
time killed in its curriculum and resumed, and has to have the same fingerprints.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from provenance import store

import bcl

SEED = 3
CARTPOLE = {
    "recipe": "bcl-c-at",
    "size": "small",
    "curriculum": {"runs": 2, "min_runs": 2, "target": 0.04},
    "evaluation": {"episodes": 2, "eps": [0.04]},
}
TRAININGS: dict[str, tuple[str, dict[str, Any]]] = {
    "CartPole DQN": (
        "cartpole",
        CARTPOLE | {"dqn": {"steps": 5_000, "log_steps": 500, "checkpoint_steps": 500, "checkpoint_replay": True}},
    ),
    "CartPole PPO": (
        "cartpole",
        CARTPOLE | {"algo": "ppo", "ppo": {"steps": 16_000, "log_steps": 2_048, "checkpoint_steps": 2_048}},
    ),
    "Pong": (
        "pong",
        {
            "recipe": "bcl-c-at",
            "size": "small",
            "dqn": {
                "steps": 160,
                "num_envs": 4,
                "replay_initial": 40,
                "log_steps": 40,
                "checkpoint_steps": 40,
                "checkpoint_replay": True,
            },
            "curriculum": {"runs": 2, "min_runs": 2, "target": 4 / 255, "increment": 1 / 255},
            "evaluation": {"episodes": 1, "max_steps": 60, "eps": [1 / 255]},
        },
    ),
}


def digest(data: Any) -> str:
    """Of bytes, or of plain data."""
    content = data if isinstance(data, bytes) else json.dumps(data, sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def fingerprints(folder: Path) -> dict[str, Any]:
    """Of all weights, all returns and all decisions of a run."""
    weights = {}
    for file in sorted(folder.rglob("policy.safetensors")):
        tensors = sorted(bcl.load(file).state_dict().items())
        weights[str(file.parent.relative_to(folder))] = digest(
            [(name, digest(t.numpy().tobytes())) for name, t in tensors]
        )
    rows = [json.loads(row) for file in sorted(folder.rglob("scores.jsonl")) for row in file.read_text().splitlines()]
    decisions = [json.loads(file.read_text())["decision"] for file in sorted(folder.rglob("decision.json"))]
    return {
        "weights": weights,
        "scores": {"count": len(rows), "digest": digest([row["returns"] for row in rows])},
        "decisions": {"count": len(decisions), "digest": digest(decisions)},
    }


def train(name: str, folder: Path, kill: bool) -> None:
    """Or continue it; `kill`: end this process at the first row of metrics in a phase."""

    def on_row(where: str, row: dict[str, Any]) -> None:
        if "phases" in where:
            os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    game, settings = TRAININGS[name]
    bcl.train(game, out=folder, seed=SEED, on_row=on_row if kill else None, **settings)


def main() -> None:
    """Train, compare, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainings", nargs="+", choices=TRAININGS, default=[*TRAININGS])
    parser.add_argument("--like", type=Path, help="a file of another commit, which has to have the same fingerprints")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = {}
    for name in options.trainings:
        with tempfile.TemporaryDirectory() as temporary:
            whole = Path(temporary) / "whole"
            resumed = Path(temporary) / "resumed"
            for folder, kill in ((whole, False), (resumed, True), (resumed, False)):
                process = multiprocessing.get_context("spawn").Process(target=train, args=(name, folder, kill))
                process.start()
                process.join()
                if process.exitcode != (-signal.SIGKILL if kill else 0):
                    sys.exit(f"{name}: ended with {process.exitcode}")
            found[name] = fingerprints(whole)
            if fingerprints(resumed) != found[name]:
                sys.exit(f"{name}: the run that was killed and resumed ended otherwise: {fingerprints(resumed)}")
        print(name, json.dumps(found[name], indent=1))
    if options.out:
        store(options.out, "cpu", {"seed": SEED, "killed_and_resumed": "the same", "trainings": found})
    if options.like:
        before = json.loads(options.like.read_text())
        if other := [name for name in found if before["trainings"][name] != found[name]]:
            sys.exit(f"other than those of {before['commit']}: {', '.join(other)}")
        print(f"the same as those of {before['commit']}")


if __name__ == "__main__":
    main()
