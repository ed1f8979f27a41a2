"""Every command in README.md and docs/, run with small budgets.

    python tests/docs_check.py [PAGE...]      # `make docs-check`

The `sh` and `python` blocks of a page are run in order, in a folder that is empty but for what pages take for granted
(see `prepare`), benchmarks/results and benchmarks/starts. Then all commands in the text of the pages are run, each
once, in one more folder. Pages keep the commands that people need; here a training gets few steps, an evaluation one
short episode and one budget, a benchmark an instant. What is not run stands in docs_commands.NOT_RUN with its reason.

Importing takes longer than most of these commands. So `bcl` and `python` are stand-ins here, which hand their words,
folder, environment and open files to a process that has imported everything; it forks, and the fork runs the command.
"""

import contextlib
import dataclasses
import gc
import importlib
import json
import os
import pkgutil
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from docs_commands import PAGES, ROOT, Piece, page_pieces, small, small_settings, text_pieces

PREPARE = "prepare"
ADDRESS = "BCL_DOCS_CHECK"  # the variable with the socket of the warm process
EPISODE = 10  # agent steps; every small training has more per copy
ENDS_LEVEL = -1  # an action of Procgen


def prepare() -> None:
    """What pages take for granted: agents, an agent of Stable-Baselines3 and published checkpoints, all untrained."""
    import stable_baselines3
    import torch

    import bcl
    from bcl.api.measuring import untrained_policy
    from bcl.config import resolve

    for file, game in (("policy.safetensors", "cartpole"), ("VANILLA", "acrobot"), ("STUDENT", "road_runner")):
        bcl.save(untrained_policy(resolve(game).game, "cpu"), file)
    stable_baselines3.PPO("MlpPolicy", "CartPole-v1", n_steps=64, seed=0).save("my_agent.zip")
    weights = untrained_policy(resolve("fruitbot").game, "cpu").network.state_dict()
    body = {k.replace("body.", "model.", 1).replace(".path.", ".model."): w for k, w in weights.items() if "body" in k}
    head = {part: torch.cat([weights[f"logits.{part}"], weights[f"value.{part}"]]) for part in ("weight", "bias")}
    both = {f"{name}.{part}": tensor for name in ("model.16", "logits_fc") for part, tensor in head.items()}
    for file in ("FruitBot_ppo.pt", "FruitBot_BCL_MOS_V_AT_PPO.pt"):
        torch.save(body | both, file)


@contextlib.contextmanager
def small_attacks() -> Iterator[None]:
    """Suites of the same attacks, each of two steps, starts or queries: one episode under `strong` takes minutes. An
    adversary that is learned gets the shortest training."""
    from bcl.attacks.learned import SHORTEST, Learned
    from bcl.attacks.suites import _NAMED, SUITES
    from bcl.attacks.threat import Attack

    learned = Learned(SHORTEST)

    def small(attack: Attack) -> Attack:
        efforts = {field.name for field in dataclasses.fields(attack)} & {"steps", "starts", "queries"}
        return learned if isinstance(attack, Learned) else dataclasses.replace(attack, **dict.fromkeys(efforts, 2))

    suites = {name: tuple(map(small, attacks)) for name, attacks in SUITES.items()}
    with mock.patch.dict(SUITES, suites), mock.patch.dict(_NAMED, learned=learned):
        yield


@contextlib.contextmanager
def short_games() -> Iterator[None]:
    """Games that are over after `EPISODE` agent steps: whole ones take minutes, and a paced budget waits for them."""
    import numpy as np
    from gymnasium.wrappers import TimeLimit

    from bcl.envs import procgen
    from bcl.envs.atari import AtariEnvs
    from bcl.envs.gymnasium import GymnasiumEnvs
    from bcl.envs.procgen import ProcgenEnvs

    begin, make = AtariEnvs.__init__, GymnasiumEnvs._make
    send, host_actions = ProcgenEnvs.send, procgen.host_actions

    def begin_short(envs: Any, game: Any, *others: Any) -> None:
        begin(envs, dataclasses.replace(game, max_steps=min(EPISODE, game.max_steps)), *others)

    def send_short(envs: Any, actions: Any) -> None:
        def ending(*given: Any) -> Any:
            return np.where(envs._steps < EPISODE, host_actions(*given), ENDS_LEVEL)

        with mock.patch.object(procgen, "host_actions", ending):
            send(envs, actions)

    with (
        mock.patch.object(AtariEnvs, "__init__", begin_short),
        mock.patch.object(ProcgenEnvs, "send", send_short),
        mock.patch.object(GymnasiumEnvs, "_make", lambda envs: TimeLimit(make(envs), EPISODE)),
    ):
        yield


def run_python(code: str) -> None:
    """A Python block, its trainings and evaluations with small budgets."""
    import bcl
    from bcl.settings import merge

    train, evaluate, certify = bcl.train, bcl.evaluate, bcl.certify

    def small(options: dict[str, Any]) -> dict[str, Any]:
        return merge(options, {"size": "small", **small_settings("dqn", options.get("recipe", "vanilla"))})

    bcl.train = lambda game, **options: train(game, **small(options))
    bcl.evaluate = lambda agent, **options: evaluate(agent, **options | {"episodes": 1})
    bcl.certify = lambda agent, **options: certify(agent, **options | {"episodes": 1})
    exec(compile(code, "block", "exec"), {"__name__": "__main__"})


def perform(words: list[str]) -> None:
    """A command, shortened, in this process."""
    if words == ["python", PREPARE]:
        prepare()
        return
    with small_attacks(), short_games():
        if words[:2] == ["python", "-c"]:
            run_python(words[2])
            return
        sys.argv = small(words)
        if words[0] == "bcl":
            from bcl.cli.main import main as bcl_main

            bcl_main()
        sys.path.insert(0, str(Path(sys.argv[0]).parent))
        runpy.run_path(sys.argv[0], run_name="__main__")


def serve(address: str) -> list[str]:
    """Import everything, then fork for every command that comes in; returns its words in the fork."""
    import bcl

    for module in pkgutil.walk_packages(bcl.__path__, "bcl."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for module_name in ("ale_py.vector_env", "matplotlib.pyplot", "procgen", "tyro"):
        importlib.import_module(module_name)
    gc.freeze()  # else every fork goes through all that was imported as it ends, for a second
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                _, files, _, _ = socket.recv_fds(connection, 1, 3)
                order = json.load(connection.makefile())
                if not (child := os.fork()):
                    break
                for file in files:
                    os.close(file)
                _, status = os.waitpid(child, 0)
                with contextlib.suppress(BrokenPipeError):  # the process that asked was killed
                    connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    # New ones: those of this process may have been files, and seek when they are reconfigured.
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    return order["words"]


def ask(words: list[str]) -> int:
    """Have the warm process run a command as if it were this process; gives its exit code."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[ADDRESS])
        socket.send_fds(connection, [b"x"], [0, 1, 2])
        order = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}
        connection.sendall(json.dumps(order).encode())
        connection.shutdown(socket.SHUT_WR)
        return int(connection.makefile().read())


@contextlib.contextmanager
def warm(folder: Path) -> Iterator[dict[str, str]]:
    """A warm process; gives the environment in which `bcl` and `python` are its."""
    for command in ("bcl", "python"):
        (folder / command).write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} --ask {command} "$@"\n')
        (folder / command).chmod(0o755)
    address = str(folder / "socket")
    path = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT), ADDRESS: address}
    environment = os.environ | path | {"OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    words = [sys.executable, __file__, "--serve", address]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        if not server.stdout.readline():
            sys.exit("what the commands need cannot be imported; the reason stands above")
        try:
            yield environment
        finally:
            server.terminate()


def run(piece: Piece, folder: Path, environment: dict[str, str], count: str) -> str:
    """Run a piece and say so; gives what failed."""
    began = time.monotonic()
    done = subprocess.run(piece.words, cwd=folder, env=environment, capture_output=True, text=True)
    said = f"{'FAILED' if done.returncode else 'ok    '} {time.monotonic() - began:5.1f} s"
    print(f"{count}  {said}  {piece.where}  {piece.shown}", flush=True)
    return f"{piece.where}: {piece.shown}\n{done.stdout}{done.stderr}" if done.returncode else ""


def check(pages: list[Path]) -> list[str]:
    """Run pages, each in a folder of its own, then their text in another; gives what failed."""
    groups = [[*page_pieces(page)] for page in pages] + [text_pieces(pages)]
    total, number, failed = sum(map(len, groups)), 0, []
    with tempfile.TemporaryDirectory(prefix="bcl-docs-") as temporary, warm(Path(temporary)) as environment:
        given, folder = Path(temporary) / "given", Path(temporary) / "page"
        for kept in ("results", "starts"):
            shutil.copytree(ROOT / "benchmarks" / kept, given / "benchmarks" / kept)
        subprocess.run(["python", PREPARE], cwd=given, env=environment, check=True)
        for group in groups:
            shutil.copytree(given, folder)
            for piece in group:
                number += 1
                failed.append(run(piece, folder, environment, f"{number:3} of {total}"))
            shutil.rmtree(folder)
    return [failure for failure in failed if failure]


def main() -> None:
    """Run all pages, or those named."""
    began = time.monotonic()
    pages = [Path(page).resolve() for page in sys.argv[1:]] or PAGES
    failed = check(pages)
    print(f"{len(failed)} failed, {time.monotonic() - began:.0f} s")
    sys.exit("\n".join(failed) or 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ask"]:
        sys.exit(ask(sys.argv[2:]))
    elif sys.argv[1:2] == ["--serve"]:
        perform(serve(sys.argv[2]))
    else:
        main()
