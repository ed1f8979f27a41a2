"""bcl bench."""

import dataclasses
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import tyro

from bcl.config import preset_names, resolve
from bcl.errors import ConfigError, MissingExtra, counted
from bcl.games import AtariGame, Game


@dataclass(frozen=True)
class Command:
    """Measure this machine: agent steps per second of games under random play, or of play under attack."""

    takes_settings: ClassVar[bool] = False

    what: Annotated[Literal["env", "attack"], tyro.conf.Positional]
    """Games alone (env), or PGD-30, RI-FGSM and Multi-T on an untrained network (attack)."""
    games: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="GAME ...")] = ()
    """Games to measure; by default all presets for env, pong for attack."""
    num_envs: int = 32
    """Copies stepped together."""
    threads: int = 0
    """Emulator threads for env; 0 lets the engine choose."""
    seconds: float = 2.0
    """Time per row, about."""
    device: str = "auto"
    """Where attacks run: auto, cpu or cuda."""

    def run(self, _: list[str]) -> None:
        """Print each row as it is measured."""
        if not 0 < self.seconds < 3600 or self.num_envs < 1 or self.threads < 0:
            raise ConfigError("cannot measure that", "seconds lie in (0, 3600), copies from 1, threads from 0")
        if self.what == "attack":
            self._attacks()
        else:
            self._games()

    def _attacks(self) -> None:
        from bcl.api.agents import pick_device
        from bcl.attacks import attack_by_name
        from bcl.evaluation.speed import attack_speed, untrained_policy

        device = pick_device(self.device)
        print(
            f"agent steps/s under attack at 3/255, {counted(self.num_envs, 'copy', 'copies')}, untrained network, {device}"
        )
        for name in self.games or ("pong",):
            game = resolve(name).game
            policy = untrained_policy(game, device)
            for attack in (attack_by_name(a) for a in ("pgd-30", "ri-fgsm", "multi-t")):
                first = attack_speed(policy, game, attack, 3 / 255, copies=self.num_envs, steps=1)
                steps = max(1, min(1000, int(first * self.seconds / self.num_envs)))
                rate = attack_speed(policy, game, attack, 3 / 255, copies=self.num_envs, steps=steps)
                print(f"  {name:<14}{attack!r:<90}{rate:>10,.1f}", flush=True)

    def _games(self) -> None:
        print(
            f"agent steps/s, {counted(self.num_envs, 'copy', 'copies')}, random actions, {counted(os.cpu_count() or 1, 'core')}"
        )
        for name in self.games or preset_names():
            for label, game in variants(resolve(name).game):
                try:
                    rate = f"{steps_per_second(game, self.num_envs, self.threads, self.seconds):>10,.0f}"
                except MissingExtra as error:
                    if self.games:  # asked for by name
                        raise
                    rate = f"  skipped: {error}"
                print(f"  {name:<14}{game.engine:<11}{label:<10}{rate}", flush=True)


def variants(game: Game) -> Iterator[tuple[str, Game]]:
    """The pipelines in which a game can be played."""
    if not isinstance(game, AtariGame):
        yield "", game
        return
    for pool in ("gray", "rgb"):
        yield pool, dataclasses.replace(game, pool=pool)
    if game.id == "road_runner":
        yield "v1", dataclasses.replace(game, pipeline="v1", num_actions=0)


def steps_per_second(game: Game, num_envs: int, threads: int, seconds: float) -> float:
    """Agent steps of all copies together per second, start-up excluded."""
    import torch

    from bcl.envs import make_env

    envs = make_env(game, num_envs, threads=threads)
    envs.reset(0)
    draws = torch.Generator().manual_seed(0)
    steps, start = 0, time.perf_counter()
    while steps < 20 * num_envs or time.perf_counter() - start < seconds:
        envs.send(torch.randint(envs.num_actions, (num_envs,), generator=draws))
        envs.recv()
        steps += num_envs
        if steps == 5 * num_envs:  # warmed up
            start = time.perf_counter()
    elapsed = time.perf_counter() - start
    envs.close()
    return (steps - 5 * num_envs) / elapsed
