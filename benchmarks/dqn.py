"""Training a DQN: agent steps per second of the real learner, beside the emulators alone and a one-environment loop.

    python benchmarks/dqn.py [--device cuda|cpu] [--game pong] [--num-envs 64] [--batch 128] [--seconds 30]
                             [--losses standard at radial] [--out benchmarks/results/dqn-NAME.json]
    python benchmarks/dqn.py --tempo paper|fast [--losses standard at radial]

The second has the sizes, attack and acceleration that `bcl train GAME --recipe vanilla|at|radial --tempo paper|fast`
has: what users get.

The learner is `bcl.learners.dqn.train` itself, read through its rows of metrics. Its replay memory is first filled a
little, then come updates in which kernels are chosen, compiled and captured; neither is measured. Rows span whole
rounds, in which exactly 32 transitions are replayed per agent step as in the paper; with another `--samples-per-step`
no ratio is given.

Shares are of the wall time. `act` and `env` are the host's: until the actions were chosen and sent, and how long it
then waited for the emulators. `attack` and `update` are the host's too on a CPU, and the device's on a GPU, where they
go on while the emulators step and the next actions are chosen: shares overlap there, and add up to more than 1 where
both are kept busy.

Memory is the peak of PyTorch's allocator on a GPU. On a CPU it is the process's peak, which a later loss inherits from
an earlier one. `with paper's replay` exchanges the memory measured for the one of the paper: 50,000 transitions with
perturbations for AT, 200,000 without for the others.

The loop in reference_loop.py is our own, in the style of the public code jlwu002/BCL, run here on the same machine. The
public code itself, adversarial training on Pong, ran at 168 agent steps/s on a machine with an H200 and 16 cores, and
at 11.4 on 2 CPU cores; the rows called `public code` are only meaningful on machines like these.
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

import reference_loop
import torch
from meter import Meter, emulators_alone, process_peak, table
from provenance import store

from bcl.api.measuring import untrained_policy
from bcl.config import AttackConfig, DqnConfig, resolve
from bcl.device import acceleration, uses_bf16
from bcl.envs import VectorEnv, make_env
from bcl.games import AtariGame
from bcl.learners.dqn import train
from bcl.learners.learner import Task
from bcl.learners.replay import Replay
from bcl.recipes import Loss

PAPER_RATIO = 32.0  # replayed transitions per agent step
RECIPES: dict[Loss, str] = {"standard": "vanilla", "at": "at", "radial": "radial"}
PAPER_REPLAY: dict[Loss, int] = {"standard": 200_000, "radial": 200_000, "at": 50_000}
PUBLIC_CODE = {"cuda": (168.0, "H200, 16 cores"), "cpu": (11.4, "2 CPU cores")}  # agent steps/s of AT
START, END = 3 / 255, 4 / 255  # budgets; they change nothing about the speed
WARM_UP = 8  # updates; graphs are captured at the third
ROW = 4_096  # agent steps per row on a GPU, about: at the end of each the host waits for the device
MIB = 2**20
Row = dict[str, Any]


def settings(loss: Loss, options: argparse.Namespace) -> tuple[DqnConfig, AttackConfig]:
    """Of the learner, with a small memory that is soon filled, and rows of whole rounds."""
    config = DqnConfig(
        num_envs=options.num_envs, batch_size=options.batch, samples_per_step=float(options.samples_per_step),
        precision=options.precision, accelerate=options.accelerate,
    )  # fmt: skip
    attack = AttackConfig()
    if options.tempo:
        own = resolve(options.game, recipe=RECIPES[loss], settings={"tempo": options.tempo})
        config, attack = own.dqn, own.attack
    shortest = round_length(config.num_envs, config.batch_size, int(config.samples_per_step))
    row = shortest * max(1, ROW // shortest) if options.device == "cuda" else shortest
    buffer = max(options.buffer, config.num_envs * config.n_step)
    return replace(config, buffer_size=buffer, replay_initial=options.fill, log_steps=row), attack


def measure(
    env: VectorEnv, game: AtariGame, loss: Loss, config: DqnConfig, attack: AttackConfig, device: str, seconds: float
) -> Row:
    """Rate, shares and memory of `train`."""
    cuda = device == "cuda"
    gc.collect()  # the learner before this one
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    policy = untrained_policy(game, device).train()
    meter = Meter(seconds, WARM_UP)
    with suppress(KeyboardInterrupt):  # how a run that is asked to stop ends
        task = Task(loss, START, END, seed=0)
        train(policy, env, config, attack, task, meter)
    peak = torch.cuda.max_memory_allocated() if cuda else process_peak()
    kept, paper = (replay_bytes(env, loss, size) for size in (config.buffer_size, PAPER_REPLAY[loss]))
    return {
        "loss": loss,
        "num_envs": config.num_envs,
        "batch_size": config.batch_size,
        "accelerate": acceleration(config.accelerate, torch.device(device), config.steps),
        "bf16": uses_bf16(config.precision, torch.device(device), image=True),
        "steps_per_second": meter.steps / meter.elapsed,
        "steps": meter.steps,
        "seconds": meter.elapsed,
        "samples_per_step": meter.updates * config.batch_size / meter.steps,
        **{name: value / meter.elapsed for name, value in meter.sums.items()},
        "peak_mib": peak / MIB,
        "replay_mib": kept / MIB,
        "paper_replay_mib": paper / MIB,
        "peak_with_paper_replay_mib": (peak - kept + paper) / MIB,
    }


def round_length(num_envs: int, batch: int, samples_per_step: int) -> int:
    """Agent steps of the shortest stretch of whole vector steps with a whole number of updates."""
    return num_envs * batch // math.gcd(batch, num_envs * samples_per_step)


def replay_bytes(env: VectorEnv, loss: Loss, capacity: int) -> int:
    """What a replay memory would hold; nothing is allocated."""
    like = torch.empty(env.num_envs, *env.obs_shape, dtype=torch.uint8, device="meta")
    return Replay(capacity, like, n_step=1, gamma=0.99, perturbations=loss == "at").nbytes


def compare(row: Row, emulators: float, single: float | None, device: str) -> Row:
    """Ratios to the emulators, to the one-environment loop and to the public code, where the work was the same."""
    rate = row["steps_per_second"]
    same = math.isclose(row["samples_per_step"], PAPER_RATIO)
    public, machine = PUBLIC_CODE[device] if row["loss"] == "at" else (None, None)
    return row | {
        "emulators_alone": emulators,
        "share_of_emulators": rate / emulators,
        "one_environment": single,
        "times_one_environment": rate / single if same and single else None,
        "public_code": public,
        "public_code_machine": machine,
        "times_public_code": rate / public if same and public else None,
    }


def shown(rows: list[Row]) -> str:
    """One column per loss."""
    return table(rows, {
        "copies": "num_envs", "batch": "batch_size", "accelerate": "accelerate",
        "agent steps/s": "steps_per_second", "replayed per step": "samples_per_step",
        "emulators alone": "emulators_alone", "share of emulators": "share_of_emulators",
        "one-environment loop": "one_environment", "times that loop": "times_one_environment",
        "public code": "public_code", "times public code": "times_public_code",
        "share env": "share_env", "share act": "share_act", "share attack": "share_attack",
        "share update": "share_update", "peak MiB": "peak_mib", "replay MiB": "replay_mib",
        "paper's replay MiB": "paper_replay_mib", "with paper's replay": "peak_with_paper_replay_mib",
    })  # fmt: skip


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--game", default="pong")
    parser.add_argument("--tempo", choices=["paper", "fast"], help="instead of all settings below but --losses")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--samples-per-step", type=int, default=int(PAPER_RATIO))
    parser.add_argument("--seconds", type=float, default=30.0, help="time per measurement")
    parser.add_argument("--losses", nargs="+", choices=list(PAPER_REPLAY), default=["standard", "at", "radial"])
    parser.add_argument("--precision", choices=["auto", "fp32", "bf16"], default="auto")
    compiler = shutil.which("cc") or shutil.which("gcc")
    parser.add_argument(
        "--accelerate", choices=["none", "graphs", "full"], default="full" if compiler else "graphs",
        help="on a GPU; compiling, part of full, needs a C compiler",
    )  # fmt: skip
    parser.add_argument("--fill", type=int, default=256, help="transitions before the first update")
    parser.add_argument("--buffer", type=int, default=20_000, help="transitions kept")
    parser.add_argument("--no-reference", action="store_true", help="leave out the one-environment loop")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    game = resolve(options.game).game
    if not isinstance(game, AtariGame):
        parser.error(f"'{options.game}' is not an Atari game")
    device, seconds = options.device, options.seconds
    env = None
    emulators = 0.0
    rows = []
    for loss in options.losses:
        config, attack = settings(loss, options)
        if env and env.num_envs != config.num_envs:
            env.close()
            env = None
        if env is None:  # ale-py makes them one after the other, 0.15 s each
            env = make_env(game, config.num_envs, device)
            emulators = emulators_alone(env, device, min(seconds, 5.0))
        row = measure(env, game, loss, config, attack, device, seconds)
        single = None
        if not options.no_reference:
            single = reference_loop.steps_per_second(
                game, loss, device, START, seconds, max(options.fill, reference_loop.BATCH)
            )
        rows.append(compare(row, emulators, single, device))
        print(f"{loss}: {rows[-1]['steps_per_second']:,.1f} agent steps/s", flush=True)
    print(f"\n{options.game}, {device}\n\n{shown(rows)}")
    if options.out:
        facts = {
            "game": options.game, "tempo": options.tempo, "precision": options.precision, "torch_threads": torch.get_num_threads(),
            "images_of_one_environment_loop": reference_loop.IMAGES, "load_average": os.getloadavg()[0],
            "unit": "agent steps/s", "rows": rows,
        }  # fmt: skip
        store(options.out, device, facts)


if __name__ == "__main__":
    main()
