"""The paper's Procgen cells with the weights its authors released: nominal to the printed digits, PGD-30 within noise.

    python benchmarks/released.py FOLDER [--weights NAME.pt ...] [--cells nominal|all] [--device cuda] [--out FILE]

FOLDER holds weights of the public repository jlwu002/BCL by the names in AGENTS; those that are not there are left out.
Reference protocol: 64 copies, rand_seed 0, greedy actions, the first 1000 finished episodes. All in full precision.
"""

import argparse
import dataclasses
from pathlib import Path

import torch
from provenance import store

from bcl.attacks import PGD
from bcl.config import resolve
from bcl.envs import make_env
from bcl.evaluation import evaluate
from bcl.games import ProcgenGame
from bcl.policies.importers import import_policy
from bcl.reports.published import results

AGENTS = {  # weights -> game, row of the paper's table
    "FruitBot_ppo.pt": ("fruitbot", "PPO (Vanilla)"),
    "FruitBot_radial_ppo.pt": ("fruitbot", "RADIAL-PPO"),
    "FruitBot_AT_PPO.pt": ("fruitbot", "AT-PPO"),
    "FruitBot_BCL_MOS_V_AT_PPO.pt": ("fruitbot", "BCL-MOS(V)-AT-PPO"),
    "Jumper_ppo.pt": ("jumper", "PPO (Vanilla)"),
    "Jumper_BCL_MOS_V_AT_PPO.pt": ("jumper", "BCL-MOS(V)-AT-PPO"),
}


def main() -> None:
    """Play every cell, print it beside the published one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--weights", nargs="+", choices=AGENTS, default=[*AGENTS], help="by default all")
    parser.add_argument("--cells", choices=["nominal", "all"], default="nominal")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = [name for name in options.weights if (options.folder / name).exists()]
    if not found:
        parser.error(f"'{options.folder}' holds none of {', '.join(options.weights)}")
    rows = []
    for name in found:
        preset, method = AGENTS[name]
        base = resolve(preset).game
        assert isinstance(base, ProcgenGame)
        for published in results(preset):
            if published.method != method:
                continue
            game = dataclasses.replace(base, num_levels=0 if published.levels == "eval" else base.num_levels)
            policy = import_policy(options.folder / name, "radial-ppo", game).to(options.device)
            for eps, mean, sem in zip(published.eps, published.mean, published.sem, strict=True):
                if eps and options.cells == "nominal":
                    continue
                env = make_env(game, 64, options.device)
                attack = PGD(steps=30, step=0.1) if eps else None
                score = evaluate(policy, env, attack, eps, episodes=1000, protocol="first", precision="full")
                env.close()
                distance = (score.mean - mean) / (score.sem**2 + sem**2) ** 0.5
                rows.append({"weights": name, "levels": game.num_levels or "unlimited", "eps": f"{eps * 255:.0f}/255",
                             "ours": score.mean, "ours_sem": score.sem, "paper": mean, "paper_sem": sem,
                             "difference_in_sems": distance})  # fmt: skip
                print({k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
    if options.out:
        protocol = "64 copies, rand_seed 0, first 1000 finished, full precision"
        store(options.out, options.device, {"protocol": protocol, "rows": rows})


if __name__ == "__main__":
    main()
