"""Training with PPO: agent steps per second of the real learner, beside the emulators alone, a loop in the style of the
public code and the paper's rate.

    python benchmarks/ppo.py [--device cuda|cpu] [--game fruitbot] [--num-envs 64] [--batch 512] [--seconds 30]
                             [--losses standard at radial] [--out benchmarks/results/ppo-NAME.json]
    python benchmarks/ppo.py --tempo paper|fast [--game jumper] [--losses standard at]

The second has the sizes and acceleration that `bcl train GAME --recipe vanilla|at|radial --tempo paper|fast` has: what
users get.

The learner is `bcl.learners.ppo.train` itself, read through its rows of metrics, one per rollout and the updates from
it. The first updates, in which kernels are chosen, compiled and captured, are not measured. The attack is the game's
own: RI-FGSM on FruitBot, PGD-10 on Jumper.

Shares are of the wall time. `act` and `env` are the host's: until the actions were chosen and sent, and how long it
then waited for the emulators. `attack` and `update` are the host's too on a CPU, and the device's on a GPU.

The loop in reference_ppo.py is our own, in the style of the public code jlwu002/BCL, run here on the same machine: 64
environments, rollouts of 256, 3 epochs in batches of 512, whatever the learner's sizes. It has no RADIAL. `times that
loop` is given where the learner also uses each step 3 times. On a CPU with few cores the loop takes minutes:
`--no-reference` leaves it out. There `peak MiB` is the process's, so that later losses inherit the loop's.

The paper's rates, 25M steps in 10 hours on FruitBot and in 34 on Jumper, are of AT with 64 environments, 3 epochs and
batches of 512 on one RTX 2080 Ti, which also played 64 more environments for its log. `times paper` is given for these
sizes on a GPU.
"""

import argparse
import gc
import math
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import reference_ppo
import torch
from meter import Meter, emulators_alone, process_peak, table
from provenance import store

from bcl.config import Config, PpoConfig, resolve
from bcl.device import acceleration, uses_bf16
from bcl.envs import VectorEnv, make_env
from bcl.learners.learner import Task
from bcl.learners.ppo import train
from bcl.policies import Policy, PolicySpec, default_kind
from bcl.recipes import Loss

PAPER = {"fruitbot": 694.0, "jumper": 204.0}  # agent steps/s of AT, RTX 2080 Ti
RECIPES: dict[Loss, str] = {"standard": "vanilla", "at": "at", "radial": "radial"}
LOSSES: tuple[Loss, ...] = ("standard", "at", "radial")
START, END = 10 / 255, 11 / 255  # budgets; they change nothing about the speed
WARM_UP = 8  # updates; graphs are captured at the third
MIB = 2**20
Row = dict[str, Any]


def settings_of(loss: Loss, options: argparse.Namespace) -> PpoConfig:
    """Of the learner, with a row for each rollout."""
    settings = PpoConfig(
        num_envs=options.num_envs, rollout=options.rollout, batch_size=options.batch,
        precision=options.precision, accelerate=options.accelerate,
    )  # fmt: skip
    if options.tempo:
        settings = resolve(options.game, recipe=RECIPES[loss], settings={"tempo": options.tempo}).ppo
    return replace(settings, log_steps=1)


def measure(env: VectorEnv, config: Config, loss: Loss, settings: PpoConfig, device: str, seconds: float) -> Row:
    """Rate, shares and memory of `train`."""
    cuda = device == "cuda"
    gc.collect()  # the learner before this one
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    kind = default_kind(env.obs_shape, "ppo")
    policy = Policy(PolicySpec(kind, env.obs_shape, env.num_actions, env.low, env.high, game=config.game)).to(device)
    meter = Meter(seconds, WARM_UP)
    with suppress(KeyboardInterrupt):  # how a run that is asked to stop ends
        task = Task(loss, START, END, seed=0)
        train(policy, env, settings, config.attack, task, meter)
    return {
        "loss": loss,
        "num_envs": settings.num_envs,
        "rollout": settings.rollout,
        "batch_size": settings.batch_size,
        "accelerate": acceleration(settings.accelerate, torch.device(device), settings.steps),
        "bf16": uses_bf16(settings.precision, torch.device(device), image=True),
        "steps_per_second": meter.steps / meter.elapsed,
        "steps": meter.steps,
        "seconds": meter.elapsed,
        "samples_per_step": meter.updates * settings.batch_size / meter.steps,
        **{name: value / meter.elapsed for name, value in meter.sums.items()},
        "peak_mib": (torch.cuda.max_memory_allocated() if cuda else process_peak()) / MIB,
    }


def compare(row: Row, emulators: float, reference: float | None, game: str, settings: PpoConfig, device: str) -> Row:
    """Ratios to the emulators, to the loop like the public code's and to the paper, where the work was the same."""
    rate = row["steps_per_second"]
    as_often = math.isclose(row["samples_per_step"], reference_ppo.EPOCHS)
    paper = PAPER.get(game) if row["loss"] == "at" else None
    sizes = ("num_envs", "rollout", "epochs", "batch_size")
    same = device == "cuda" and all(getattr(settings, name) == getattr(PpoConfig(), name) for name in sizes)
    return row | {
        "emulators_alone": emulators,
        "share_of_emulators": rate / emulators,
        "reference_loop": reference,
        "times_reference_loop": rate / reference if as_often and reference else None,
        "paper": paper,
        "times_paper": rate / paper if same and paper else None,
    }


def shown(rows: list[Row]) -> str:
    """One column per loss."""
    return table(rows, {
        "copies": "num_envs", "batch": "batch_size", "accelerate": "accelerate",
        "agent steps/s": "steps_per_second", "samples per step": "samples_per_step",
        "emulators alone": "emulators_alone", "share of emulators": "share_of_emulators",
        "loop like public code": "reference_loop", "times that loop": "times_reference_loop",
        "paper, 2080 Ti": "paper", "times paper": "times_paper",
        "share env": "share_env", "share act": "share_act", "share attack": "share_attack",
        "share update": "share_update", "peak MiB": "peak_mib",
    })  # fmt: skip


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--game", choices=list(PAPER), default="fruitbot")
    parser.add_argument("--tempo", choices=["paper", "fast"], help="instead of sizes, precision and acceleration")
    parser.add_argument("--num-envs", type=int, default=PpoConfig().num_envs)
    parser.add_argument("--rollout", type=int, default=PpoConfig().rollout)
    parser.add_argument("--batch", type=int, default=PpoConfig().batch_size)
    parser.add_argument("--seconds", type=float, default=30.0, help="time per measurement, at least one rollout")
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=["standard", "at"])
    parser.add_argument("--precision", choices=["auto", "fp32", "bf16"], default="auto")
    compiler = shutil.which("cc") or shutil.which("gcc")
    parser.add_argument(
        "--accelerate", choices=["none", "graphs", "full"], default="full" if compiler else "graphs",
        help="on a GPU; compiling, part of full, needs a C compiler",
    )  # fmt: skip
    parser.add_argument("--no-reference", action="store_true", help="leave out the loop like the public code's")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    config, device = resolve(options.game, recipe="at"), options.device
    env = None
    emulators = 0.0
    rows = []
    for loss in options.losses:
        settings = settings_of(loss, options)
        if env and env.num_envs != settings.num_envs:
            env.close()
            env = None
        if env is None:
            env = make_env(config.game, settings.num_envs, device)
            emulators = emulators_alone(env, device, min(options.seconds, 5.0))
        row = measure(env, config, loss, settings, device, options.seconds)
        reference = None
        if loss in reference_ppo.LOSSES and not options.no_reference:
            reference = reference_ppo.steps_per_second(config.game, loss, device, START, options.seconds)
        rows.append(compare(row, emulators, reference, options.game, settings, device))
        print(f"{loss}: {rows[-1]['steps_per_second']:,.1f} agent steps/s", flush=True)
    print(f"\n{options.game}, {device}\n\n{shown(rows)}")
    if options.out:
        facts = {
            "game": options.game, "attack": config.attack.kind, "tempo": options.tempo, "epochs": PpoConfig().epochs,
            "precision": options.precision, "torch_threads": torch.get_num_threads(),
            "load_average": os.getloadavg()[0], "unit": "agent steps/s", "rows": rows,
        }  # fmt: skip
        store(options.out, device, facts)


if __name__ == "__main__":
    main()
