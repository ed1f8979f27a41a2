"""The paper's FruitBot cells with the weights its authors released: nominal to the printed digits, PGD-30 within noise.

    python benchmarks/released.py FOLDER [--cells nominal|all] [--device cuda] [--out benchmarks/results/released.json]

FOLDER holds FruitBot_ppo.pt and FruitBot_radial_ppo.pt of the public repository jlwu002/BCL. Reference protocol: 64
copies, rand_seed 0, greedy actions, the first 1000 finished episodes. Everything in full precision.
"""

import argparse
import dataclasses
import json
from pathlib import Path

import torch
from provenance import provenance

from bcl.attacks import PGD
from bcl.config import resolve
from bcl.envs import make_env
from bcl.evaluation import evaluate
from bcl.games import ProcgenGame
from bcl.policies.importers import import_policy

# (weights, levels, eps in 1/255) -> published mean and standard error; levels 200: Train, 0: Eval
PUBLISHED = {
    ("FruitBot_ppo.pt", 200, 0): (30.20, 0.23), ("FruitBot_ppo.pt", 0, 0): (26.09, 0.33),
    ("FruitBot_radial_ppo.pt", 200, 0): (28.03, 0.24), ("FruitBot_radial_ppo.pt", 0, 0): (26.08, 0.29),
    ("FruitBot_ppo.pt", 200, 10): (2.40, 0.21), ("FruitBot_ppo.pt", 0, 10): (1.70, 0.20),
    ("FruitBot_ppo.pt", 200, 15): (0.73, 0.16), ("FruitBot_ppo.pt", 0, 15): (0.11, 0.14),
    ("FruitBot_ppo.pt", 200, 20): (-0.72, 0.14), ("FruitBot_ppo.pt", 0, 20): (-0.50, 0.13),
}  # fmt: skip


def main() -> None:
    """Play every cell, print it beside the published one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cells", choices=["nominal", "all"], default="nominal")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    base = resolve("fruitbot").game
    assert isinstance(base, ProcgenGame)
    rows = []
    for (name, levels, level_eps), (mean, sem) in PUBLISHED.items():
        if level_eps and options.cells == "nominal":
            continue
        game = dataclasses.replace(base, num_levels=levels)
        policy = import_policy(options.folder / name, "radial-ppo", game).to(options.device)
        env = make_env(game, 64, options.device)
        attack = PGD(steps=30, step=0.1) if level_eps else None
        score = evaluate(policy, env, attack, level_eps / 255, episodes=1000, protocol="first", precision="full")
        distance = (score.mean - mean) / (score.sem**2 + sem**2) ** 0.5
        rows.append({"weights": name, "levels": levels or "unlimited", "eps": f"{level_eps}/255", "ours": score.mean,
                     "ours_sem": score.sem, "paper": mean, "paper_sem": sem, "difference_in_sems": distance})  # fmt: skip
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
        env.close()
    if options.out:
        about = provenance(options.device) | {"protocol": "64 copies, rand_seed 0, first 1000 finished, full precision"}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(about | {"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
