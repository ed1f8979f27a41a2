"""Evaluation under attack: all episodes at once against one environment at a time, same attack, same machine.

    python benchmarks/evaluate.py [--device cuda] [--steps 300] [--cells pgd-30 paper strong] [--out benchmarks/results/evaluate-NAME.json]

The one-at-a-time loop is how the reference code evaluates: batch 1, a step at a time. Its own rates on a machine with an
H200 and 16 cores were 15.6 (PGD-30), 177 (RI-FGSM) and 114 (Multi-T) agent steps/s.

`--cells` compares whole evaluations, one cell after the other against several side by side: PGD-30 and the suite `paper` at the
budgets of the game's preset, `strong` at one of them. Emulators are made before either.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path

import torch
from provenance import provenance

from bcl.attacks import PGD, RIFGSM, Attack, MultiT, perturb, suite
from bcl.config import resolve
from bcl.envs import make_env
from bcl.evaluation import Cell, Plan, cells, evaluate_cells
from bcl.evaluation.play import SearchForm
from bcl.evaluation.speed import attack_speed, untrained_policy
from bcl.evaluation.suite import cells_at_once, make_envs
from bcl.games import AtariGame, Game
from bcl.policies import Policy, as_float

ATTACKS: dict[str, Attack] = {"PGD-30": PGD(steps=30, step=0.1), "RI-FGSM": RIFGSM(), "Multi-T": MultiT(starts=1000)}
REFERENCE_H200 = {"PGD-30": 15.6, "RI-FGSM": 177.0, "Multi-T": 114.0}  # agent steps/s of the public code
EPS = 3 / 255


def one_at_a_time(policy: Policy, game: Game, attack: Attack, seconds: float) -> float:
    """Agent steps per second of one environment, attacked with batch 1, eagerly."""
    device = next(policy.parameters()).device
    env = make_env(game, 1, device)
    obs = env.reset(0)
    generator = torch.Generator(device).manual_seed(0)
    searched = SearchForm(policy, half=False)  # the same attack, without the value stream, but a step at a time
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        seen = perturb(attack, searched, as_float(obs), EPS, generator)
        with torch.no_grad():
            env.send(policy(seen).argmax(dim=1))
        obs = env.recv().obs
        steps += 1
    env.close()
    return steps / (time.perf_counter() - start)


def cells_of(name: str, game: str) -> list[Cell]:
    """The cells of a whole evaluation."""
    budgets = resolve(game).evaluation.eps
    if name == "pgd-30":
        return [Cell(ATTACKS["PGD-30"], eps) for eps in budgets]
    return cells(suite(name), budgets if name == "paper" else [10 / 255])


def whole_evaluation(policy: Policy, game: AtariGame, wanted: list[Cell], copies: int, steps: int) -> dict[str, float]:
    """Seconds and agent steps per second of cells one by one and side by side."""
    game = dataclasses.replace(game, max_steps=steps)
    device = next(policy.parameters()).device
    plan = Plan(game, copies, num_envs=copies)
    width = min(cells_at_once(policy, plan), len(wanted))
    one, several = make_envs(plan, 1, device), make_envs(plan, width, device)

    def play(cells: list[Cell], at_once: int) -> tuple[float, int]:
        start = time.perf_counter()
        played = 0
        for first in range(0, len(cells), at_once):
            part = cells[first : first + at_once]
            envs = one if at_once == 1 else several
            envs = envs if len(envs) == 1 else envs[: len(part)]
            for _, score in evaluate_cells(policy, envs, part, plan):
                played += sum(score.lengths)
        return time.perf_counter() - start, played

    first_of_each = [
        cell for number, cell in enumerate(wanted) if cell.attack not in [c.attack for c in wanted[:number]]
    ]
    play(first_of_each, 1)  # loads kernels; not measured
    alone, alone_steps = play(wanted, 1)
    together, steps_together = play(wanted, width)
    for env in [*one, *several]:
        env.close()
    return {
        "cells": len(wanted), "at_once": width, "one_by_one_s": alone, "side_by_side_s": together, "ratio": alone / together,
        "one_by_one_steps_per_second": alone_steps / alone, "side_by_side_steps_per_second": steps_together / together,
    }  # fmt: skip


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--game", default="pong")
    parser.add_argument("--copies", type=int, default=20)
    parser.add_argument("--steps", type=int, default=300, help="agent steps per episode")
    parser.add_argument("--seconds", type=float, default=5.0, help="time per one-at-a-time row")
    parser.add_argument("--attacks", nargs="*", default=list(ATTACKS))
    parser.add_argument("--cells", nargs="*", default=[], choices=["pgd-30", "paper", "strong"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    game = resolve(options.game).game
    policy = untrained_policy(game, options.device)
    rows = []
    for name in options.attacks:
        attack_speed(policy, game, ATTACKS[name], EPS, copies=options.copies, steps=2)  # loads kernels; not measured
        ours = attack_speed(policy, game, ATTACKS[name], EPS, copies=options.copies, steps=options.steps)
        single = one_at_a_time(policy, game, ATTACKS[name], options.seconds)
        rows.append({"attack": name, "together": ours, "one_at_a_time": single, "ratio": ours / single})
        if options.device == "cuda":
            rows[-1] |= {"reference_h200": REFERENCE_H200[name], "times_reference": ours / REFERENCE_H200[name]}
        print({k: v if isinstance(v, str) else round(v, 1) for k, v in rows[-1].items()}, flush=True)
    wholes = []
    for name in options.cells:
        measured = whole_evaluation(policy, game, cells_of(name, options.game), options.copies, options.steps)
        wholes.append({"evaluation": name} | measured)
        print({k: v if isinstance(v, str) else round(v, 1) for k, v in wholes[-1].items()}, flush=True)
    if options.out:
        about = provenance(options.device) | {"game": options.game, "eps": "3/255", "unit": "agent steps/s"}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(about | {"rows": rows, "cells": wholes}, indent=2) + "\n")


if __name__ == "__main__":
    main()
