"""Evaluation under attack: all episodes at once against one environment at a time, same attack, same machine.

    python benchmarks/evaluate.py [--device cuda] [--steps 300] [--out benchmarks/results/evaluate-NAME.json]
    python benchmarks/evaluate.py --attacks --cells pgd-30 paper strong [--agent zoo:pong-distilled]
    python benchmarks/evaluate.py --attacks --cells levels --game fruitbot [--precision full]
    python benchmarks/evaluate.py --attacks --decisions [--agent zoo:pong-distilled]
    python benchmarks/evaluate.py --attacks --left-alone pgd-30 multi+multi-t --agent zoo:pong-distilled --eps 25/255

The one-at-a-time loop is how the reference code evaluates: batch 1, a step at a time. Its own rates on a machine with
an H200 and 16 cores were 15.6 (PGD-30), 177 (RI-FGSM) and 114 (Multi-T) agent steps/s.

`--cells` compares whole evaluations, one cell after the other, in which no observation is left alone, against several
side by side: PGD-30 and the suite `paper` at the budgets of the game's preset, `strong` at one of them, and for Procgen
PGD-30 at these budgets on training levels and on all levels, there also all of them in one pass. Every pass is played
for `--steps` steps of each copy, or `--seconds`, from the fifth step on, when emulators are made, 0.15 s each, and
graphs captured. So it is the rate while all cells are played; what a whole evaluation takes goes by `--length`.

`--decisions` times single decisions without the game, for every attack of `strong`: all copies at one budget, and at
all budgets of the preset as rows of one batch. So it says which attack a GPU has room for.

`--left-alone`, on a CPU, plays `--steps` steps of a game, after some of nominal play, under these attacks: once with
every observation attacked, one attack after the other, and once as evaluations do, without those whose action is proven
or settled or that another copy has too, `multi+multi-t` in one batch. It stops if another action was taken.
"""

import argparse
import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from provenance import store

import bcl
from bcl.api.measuring import attack_speed, untrained_policy
from bcl.attacks import PGD, RIFGSM, Attack, Multi, MultiT, attack_by_name, attack_label, perturb, suite
from bcl.config import resolve
from bcl.envs import VectorEnv, make_env
from bcl.errors import BclError
from bcl.evaluation import Cell, Plan, cells, evaluate_cells, game_for_evaluation
from bcl.evaluation.plan import Precision
from bcl.evaluation.play import ActionChooser, SearchForm, chooser_for, same_candidates
from bcl.evaluation.slot import Slot
from bcl.evaluation.suite import cells_at_once, make_envs
from bcl.games import Game, ProcgenGame
from bcl.policies import Policy, as_float
from bcl.settings import format_eps, parse_eps

ATTACKS: dict[str, Attack] = {"PGD-30": PGD(steps=30, step=0.1), "RI-FGSM": RIFGSM(), "Multi-T": MultiT(starts=1000)}
REFERENCE_H200 = {"PGD-30": 15.6, "RI-FGSM": 177.0, "Multi-T": 114.0}  # agent steps/s of the public code
EPS = 3 / 255
WARM_UP = 4  # steps of a pass that are not measured: graphs are captured at the third
SETTLING = 40  # steps before the state that is attacked again and again
DECISIONS = 4
ENDLESS = 10**6  # episodes: no cell is done before the time is up


def one_at_a_time(policy: Policy, game: Game, attack: Attack, seconds: float) -> float:
    """Agent steps per second of one environment, attacked with batch 1, eagerly."""
    device = next(policy.parameters()).device
    env = make_env(game, 1, device)
    obs = env.reset(0)
    generator = torch.Generator(device).manual_seed(0)
    searched = SearchForm(policy, "full")  # the same attack, without the value stream, but a step at a time
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        seen = perturb(attack, searched, as_float(obs), EPS, generator)
        with torch.no_grad():
            env.send(policy(seen).argmax(dim=1))
        obs = env.recv().obs
        steps += 1
    env.close()
    return steps / (time.perf_counter() - start)


def episodes_together(
    policy: Policy, game: Game, name: str, copies: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Agent steps per second under an attack, all copies at once and one environment at a time."""
    attack = ATTACKS[name]
    attack_speed(policy, game, attack, EPS, copies=copies, steps=2)  # loads kernels; not measured
    ours = attack_speed(policy, game, attack, EPS, copies=copies, steps=options.steps)
    single = one_at_a_time(policy, game, attack, options.seconds)
    row = {"attack": name, "together": ours, "one_at_a_time": single, "ratio": ours / single}
    if options.device == "cuda":
        row |= {"reference_h200": REFERENCE_H200[name], "times_reference": ours / REFERENCE_H200[name]}
    return row


def told(row: dict[str, Any]) -> dict[str, Any]:
    """The same, once it is printed with four digits."""
    print({k: v if isinstance(v, str) else float(f"{v:.4g}") for k, v in row.items()}, flush=True)
    return row


def cells_of(name: str, game: str) -> list[Cell]:
    """The cells of a whole evaluation."""
    budgets = resolve(game).evaluation.eps
    if name == "pgd-30":
        return [Cell(ATTACKS["PGD-30"], eps) for eps in budgets]
    if name == "levels":
        return cells([ATTACKS["PGD-30"]], budgets)
    return cells(suite(name), budgets if name == "paper" else [10 / 255])


def plans_of(name: str, game: Game, copies: int, precision: Precision) -> list[Plan]:
    """The games whose cells it has."""
    games = [
        game_for_evaluation(game, levels, 10_000) for levels in (("train", "eval") if name == "levels" else (None,))
    ]
    return [Plan(one, ENDLESS, precision=precision, num_envs=copies) for one in games]


class EnoughError(Exception):
    """The pass was played for long enough."""


@dataclass
class StepClock:
    """Seconds of a step of all copies; told after every step."""

    steps: int
    seconds: float
    times: list[float] = field(default_factory=list)

    def __call__(self, steps: int, episodes: int) -> None:
        self.times.append(time.perf_counter())
        measured = len(self.times) - WARM_UP
        if measured > 0 and (measured >= self.steps or self.times[-1] - self.times[WARM_UP - 1] >= self.seconds):
            raise EnoughError

    @property
    def mean(self) -> float:
        return (self.times[-1] - self.times[WARM_UP - 1]) / (len(self.times) - WARM_UP)


def seconds_per_step(
    policy: Policy,
    envs: Sequence[VectorEnv],
    part: Sequence[Cell],
    plan: Plan,
    clock: StepClock,
) -> float:
    """Of cells that are played together."""
    try:
        for _ in evaluate_cells(policy, envs, part, plan, progress=clock):
            pass
    except EnoughError:
        return clock.mean
    raise AssertionError("a million episodes were played")


def as_before(cell: Cell) -> Cell:
    """Without leaving observations alone that are settled."""
    attack = cell.attack
    return (
        dataclasses.replace(cell, attack=dataclasses.replace(attack, leaves_settled=False))
        if isinstance(attack, Multi | MultiT)
        else cell
    )


def whole_evaluation(
    policy: Policy,
    plans: Sequence[Plan],
    wanted: Sequence[Cell],
    steps: int,
    seconds: float,
    cell_by_cell: bool,
) -> dict[str, float]:
    """Seconds for a step of every cell, one by one and side by side, and agent steps per second."""
    device = next(policy.parameters()).device
    width = min(cells_at_once(policy, plans[0]), len(wanted))
    one_by_one = side_by_side = 0.0
    held: list[VectorEnv] = []
    for plan in plans:
        one, several = make_envs(plan, 1, device), make_envs(plan, width, device)
        for cell in wanted if cell_by_cell else ():
            one_by_one += seconds_per_step(policy, one, [as_before(cell)], plan, StepClock(steps, seconds))
        for first in range(0, len(wanted), width):
            part = wanted[first : first + width]
            envs = several if len(several) == 1 else several[: len(part)]
            clock = StepClock(steps, seconds)
            side_by_side += seconds_per_step(policy, envs, part, plan, clock)
        held += several
        for env in one:
            env.close()
    count, copies = len(wanted) * len(plans), plans[0].copies()
    found = {"cells": count, "at_once": width, "side_by_side_s": side_by_side}
    found["side_by_side_steps_per_second"] = count * copies / side_by_side
    if cell_by_cell:
        found |= {"one_by_one_s": one_by_one, "ratio": one_by_one / side_by_side}
        found["one_by_one_steps_per_second"] = count * copies / one_by_one
    if len(plans) > 1 and len(held) == count:  # environments of their own: cells of several games fit in one pass
        clock = StepClock(steps, seconds)
        together = seconds_per_step(policy, held, [*wanted] * len(plans), plans[0], clock)
        found |= {"one_pass_s": together, "one_pass_steps_per_second": count * copies / together}
    for env in held:
        env.close()
    return found


def decision_times(policy: Policy, game: Game, copies: int, budgets: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Milliseconds of one decision of all copies, at one budget and at all of them, for every attack of `strong`."""
    device = next(policy.parameters()).device
    plan = Plan(game_for_evaluation(game, None, 10_000), copies, num_envs=copies)
    with contextlib.closing(make_env(plan.game, copies, device)) as env:
        obs = settled(policy, env)
    search = SearchForm(policy, plan.precision)
    for attack in suite("strong"):
        times = [seconds_of_a_decision(policy, search, attack, plan, obs, part) for part in ([10 / 255], budgets)]
        one, together = (1000 * seconds for seconds in times)
        gain = len(budgets) * one / together
        yield {"attack": attack_label(attack), "one_budget_ms": one, "all_budgets_ms": together, "gain": gain}


def seconds_of_a_decision(
    policy: Policy, search: SearchForm, attack: Attack, plan: Plan, obs: torch.Tensor, budgets: Sequence[float]
) -> float:
    """Once it is captured as a graph, where it can be."""
    slots = [Slot(Cell(attack, eps), plan, obs.device) for eps in budgets]
    for slot in slots:
        slot.obs = obs
    choose = chooser_for(policy, search, slots)
    rows = torch.cat([obs] * len(slots))
    wait = torch.cuda.synchronize if obs.is_cuda else lambda: None
    for _ in range(WARM_UP):
        choose(rows)
    wait()
    start = time.perf_counter()
    for _ in range(DECISIONS):
        choose(rows)
    wait()
    return (time.perf_counter() - start) / DECISIONS


def settled(policy: Policy, env: VectorEnv) -> torch.Tensor:
    """Observations after some steps of nominal play, before which copies may be alike."""
    obs = env.reset(0)
    for _ in range(SETTLING):
        with torch.no_grad():
            env.send(policy(as_float(obs)).argmax(dim=1))
        obs = env.recv().obs
    return obs


def left_alone(
    policy: Policy, game: Game, attacks: Sequence[Attack], eps: float, copies: int, steps: int
) -> dict[str, float | str]:
    """Seconds of some steps of every copy under each of the attacks: one attack after the other, every observation
    attacked, and all of them together, without what is decided or has been attacked already."""
    plan = Plan(game_for_evaluation(game, None, 10_000, copies), copies, num_envs=copies)
    label = " and ".join(map(attack_label, attacks))
    seconds, actions = [], []
    for together in (False, True):
        search = SearchForm(policy, "full")
        slots = [Slot(Cell(attack, eps), plan, policy.device) for attack in attacks]
        with contextlib.ExitStack() as held:
            envs = [held.enter_context(contextlib.closing(plan.make_env(copies, policy.device))) for _ in slots]
            for slot, env in zip(slots, envs, strict=True):
                slot.obs = settled(policy, env)
            if together:
                decide = [chooser_for(policy, search, slots)]
            else:
                searched = [(as_before(slot.cell).attack, eps, slot.generator) for slot in slots]
                decide = [ActionChooser(policy, search, *given) for given in searched]
            of_each = len(slots) // len(decide)
            quick = [(PGD(steps=2, step=0.5), eps, torch.Generator())]  # not measured: the first of a process
            [ActionChooser(policy, search, *given)(slots[0].obs) for given in quick]
            taken = []
            start = time.perf_counter()
            for _ in range(steps):
                rows = torch.cat([slot.obs for slot in slots]).split(of_each * copies)
                taken.append(torch.cat([choose(part).actions for choose, part in zip(decide, rows, strict=True)]))
                for slot, env, chosen in zip(slots, envs, taken[-1].split(copies), strict=True):
                    env.send(chosen)
                    slot.obs = env.recv().obs
            seconds.append(time.perf_counter() - start)
        actions.append(torch.stack(taken))
    if not torch.equal(*actions):
        raise SystemExit(f"{label} at {format_eps(eps)}: other actions where observations are left alone")
    every, some = seconds
    facts: dict[str, float | str] = {"attack": label, "eps": format_eps(eps)}
    return facts | {"every_row_s": every, "left_alone_s": some, "ratio": every / some}


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--game", default="pong")
    parser.add_argument("--agent", help="a run, a policy file or zoo:NAME; without it, untrained weights")
    parser.add_argument("--copies", type=int, default=0, help="per cell; 0: 20, on Procgen 64")
    parser.add_argument("--steps", type=int, default=300, help="agent steps per episode, and steps of a pass")
    parser.add_argument("--seconds", type=float, default=5.0, help="time per one-at-a-time row, and per pass at most")
    parser.add_argument("--attacks", nargs="*", default=list(ATTACKS))
    parser.add_argument("--cells", nargs="*", default=[], choices=["pgd-30", "paper", "strong", "levels"])
    parser.add_argument("--decisions", action="store_true", help="single decisions under every attack of strong")
    parser.add_argument("--left-alone", nargs="*", default=[], help="attacks, A+B together; with and without; on a CPU")
    parser.add_argument("--eps", nargs="*", default=[], help="of --left-alone; else the preset's least and largest")
    parser.add_argument("--precision", choices=["fast", "full"], default="fast", help="of cells")
    parser.add_argument(
        "--length", type=float, default=400.0, help="agent steps per episode, for the minutes of all episodes"
    )
    parser.add_argument("--no-reference", action="store_true", help="not one cell after the other")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    config = resolve(options.game)
    game = config.game
    try:
        compared = [[attack_by_name(name) for name in words.split("+")] for words in options.left_alone]
        budgets = [*map(parse_eps, options.eps)] or [config.evaluation.eps[0], config.evaluation.eps[-1]]
    except BclError as error:
        parser.error(str(error))
    if compared and options.device != "cpu":
        parser.error("--left-alone is for --device cpu")
    if any(same_candidates(one) != same_candidates(attacks[0]) for attacks in compared for one in attacks):
        parser.error("--left-alone A+B is for attacks with the same candidates, such as multi+multi-t")
    if "levels" in options.cells and not isinstance(game, ProcgenGame):
        parser.error(f"'{options.game}' has no sets of levels")
    policy = bcl.load(options.agent, options.device) if options.agent else untrained_policy(game, options.device)
    copies = options.copies or (64 if isinstance(game, ProcgenGame) else 20)
    rows = [told(episodes_together(policy, game, name, copies, options)) for name in options.attacks]
    wholes = []
    for name in options.cells:
        plans = plans_of(name, game, copies, options.precision)
        wanted = cells_of(name, options.game)
        measured = whole_evaluation(policy, plans, wanted, options.steps, options.seconds, not options.no_reference)
        rounds = config.evaluation.episodes / copies
        measured["minutes_of_all_episodes"] = measured["side_by_side_s"] * rounds * options.length / 60
        wholes.append(told({"evaluation": name} | measured))
    timed = decision_times(policy, game, copies, config.evaluation.eps) if options.decisions else ()
    decisions = [told(row) for row in timed]
    alone = [
        told(left_alone(policy, game, attacks, eps, copies, options.steps)) for attacks in compared for eps in budgets
    ]
    if options.out:
        facts = {
            "game": options.game, "agent": options.agent, "eps": "3/255", "unit": "agent steps/s",
            "precision": options.precision, "length": options.length,
            "rows": rows, "cells": wholes, "decisions": decisions, "left_alone": alone,
        }  # fmt: skip
        store(options.out, options.device, facts)


if __name__ == "__main__":
    main()
