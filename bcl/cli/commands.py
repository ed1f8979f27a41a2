"""The commands. Each is a function of the Python API and what the console adds to it: what is printed, in which form.

A command's flags are the parameters of the API's function and of its own function here. `call` is the API's function with
the arguments that were given. Nothing heavy is imported at the top.
"""

import dataclasses
import json as to_json
import os
import shlex
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import bcl
from bcl.api import Where, console
from bcl.errors import ConfigError, MissingExtra, StoreError, WeightsError, counted
from bcl.recipes import Settings
from bcl.runs.directory import Repeats, RunDirectory
from bcl.settings import format_eps

if TYPE_CHECKING:
    from bcl.games import Game
    from bcl.reports.compare import Comparison
    from bcl.reports.data import Collected

Call = partial[Any]
NONE: Settings = {}


def _print_next(*words: str | Path) -> None:
    """The command to go on with, as a shell takes it."""
    print(f"next: {shlex.join(['bcl', *map(str, words)])}")


def train(call: Call) -> None:
    """Train."""
    found = call(say=console.say, as_command=True)
    print(found)
    _print_next("report", found.folder)


def resume(call: Call) -> None:
    """Continue."""
    train(call)


def status(folder: Path) -> None:
    """Tell where a run stands, also while another process works on it.

    Args:
        folder: The run directory.
    """
    repeats = Repeats(folder)
    runs = repeats.runs()
    states = [_print_status(run, repeats) for run in runs or [RunDirectory(folder)]]
    state = next((s for s in ("at work", "stopped") if s in states), "finished")
    if runs and state == "finished" and (found := repeats.result()):
        print(f"final scores {found.get('final_scores')}, median {found.get('median')}, IQM {found.get('iqm')}")
    word = {"finished": "report", "stopped": "resume", "at work": "status"}[state]
    _print_next(word, folder)


def _print_status(run: RunDirectory, repeats: Repeats) -> str:
    from bcl.experiment.status import incumbent, status

    now = status(run.path)
    print(f"{run.path}: {now.config.recipe} on {now.config.game.id}, seed {now.config.seed}")
    for line in now.lines:
        print(f"  {line}")
    if best := incumbent(run.path):
        print(f"  best so far: {best}")
    for piece in now.pieces:
        print(f"  {console.piece_line(piece)}")
    waits = now.state == "stopped" and repeats.exists and repeats.owner()
    print(f"  {'waiting' if waits else now.state}{f' ({now.owner})' if now.owner else ''}")
    return "at work" if waits else now.state


def attack(call: Call, *, json: bool = False) -> None:
    """Evaluate.

    Args:
        json: Print JSON instead of a table.
    """
    from rich.text import Text

    from bcl.reports import tables
    from bcl.reports.style import TERMINAL_FLAG

    found = _played(call, quiet=json)
    if json:
        print(to_json.dumps(found.to_dict()))
        return
    tables.print_table(found.table(), console.out)
    if found.breaking:
        console.out.print(str(found.breaking), highlight=False)
    for flag in found.flags:
        name = Text(f"flag {flag.name}", style=TERMINAL_FLAG)
        console.out.print(name.append(f": {flag.message} (docs/flags.md)", style="not bold default"))
    print(f"results: {found.folder}")
    if call.keywords.get("suite") not in ("strong", "learned"):
        eps = call.keywords.get("eps")
        _print_next("attack", call.args[0], "--suite", "strong", *(["--eps", *eps] if eps else []))


def certify(call: Call, *, json: bool = False) -> None:
    """Certify.

    Args:
        json: Print JSON instead of a table.
    """
    from bcl.reports.tables import print_table

    found = _played(call, quiet=json)
    if json:
        print(to_json.dumps([proof.to_dict() for proof in found.certificates]))
        return
    print_table(found.table(), console.out)
    print(f"results: {found.folder}")
    if found.method == "crown":
        _print_next("report", call.args[0])
    else:
        budgets = [format_eps(proof.eps) for proof in found.certificates]
        _print_next("certify", call.args[0], "--eps", *budgets, "--method", "crown")


def _played(call: Call, quiet: bool) -> Any:
    """What an evaluation gives; where it is stopped, what becomes of what is done is said."""
    try:
        with console.progress(quiet=quiet) as bar:
            return call(listener=bar)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("what is finished is kept, the same command goes on from there") from None


def report(call: Call) -> None:
    """Report."""
    told: list[Collected] = []
    out = call(say=console.say, tell=told.append)
    print(f"verdict: {told[0].verdict}")
    print(f"report: {out}")
    print(f"next: {_after_report(told[0])}")


def _after_report(collected: "Collected") -> str:
    from bcl.reports.collect import agent_file

    if word := {"stopped": "resume", "at work": "status"}.get(collected.state):
        return f"bcl {word} {shlex.quote(collected.source)}"
    agent = Path(collected.agent)
    if agent_file(agent):
        return f"bcl {'video' if collected.evaluations else 'attack'} {shlex.quote(collected.agent)}"
    last = RunDirectory(agent).stages()[-1].policy  # the best one is gone; this is what it was copied from
    if last.exists():
        return f"bcl attack {shlex.quote(str(last))}"
    return f"copy the run again with all its files, '{agent}' has no best policy"


def compare(
    call: Call,
    *,
    format: Literal["table", "markdown", "latex", "json"] = "table",
    figure: Where | None = None,
) -> None:
    """Compare.

    Args:
        format: What is printed.
        figure: Also draw it: a png, svg or pdf file.
    """
    from bcl.reports import compare_figure, tables
    from bcl.runs import store

    file = Path(figure) if figure else None
    ending = compare_figure.figure_format(file) if file else ""  # before the work
    found = call()
    if file:  # before a reader of the tables closes the pipe
        store.write_bytes(file, compare_figure.encoded(compare_figure.draw(found), ending))
    if format == "json":
        print(to_json.dumps(found.to_dict()))
        return
    if format != "table":
        written = tables.as_latex if format == "latex" else tables.as_markdown
        print("\n\n".join(map(written, tables.tables(found))))
        return
    for table in tables.tables(found):
        tables.print_table(table, console.out)
    if file:
        print(f"figure: {file}")
    print(f"next: {_after_compare(found, call.args, bool(file))}")


def _after_compare(found: "Comparison", paths: tuple[Path, ...], drawn: bool) -> str:
    """What is missing first: attacks that others of the same game faced; then the figure."""
    for block in found.blocks:
        if missing := block.missing:
            entry = next(entry for entry in found.entries if entry.label == missing.row)
            agent = Repeats(entry.path).run(missing.member).path if len(entry.members) > 1 else entry.path
            words = ["bcl", "attack", str(agent), "--suite", missing.suite]
            words += ["--eps", *map(format_eps, missing.eps)] if missing.eps else []
            words += ["--episodes", str(block.episodes)]
            words += ["--env-set", block.levels] if block.levels else []
            words += ["--starts", block.starts] if block.starts != "game" else []
            words += ["--protocol", block.protocol] if block.protocol != "fixed" else []
            return shlex.join(words)
    last = ["--format", "latex"] if drawn else ["--figure", "compare.png"]
    return shlex.join(["bcl", "compare", *map(str, paths), *last])


def video(call: Call) -> None:
    """Film."""
    with console.progress(1) as bar:
        made = call(listener=bar)
    print(made)
    given = call.keywords
    words = ["--attack", given.get("attack", "pgd"), "--eps", format_eps(made.eps)] if made.eps else []
    words += ["--env-set", given["env_set"]] if "env_set" in given else []
    _print_next("attack", call.args[0], *words)


def zoo(name: str | None = None) -> None:
    """List the published agents with their returns, or tell all about one: how it was trained, and its checksum.

    Args:
        name: An agent of the list.
    """
    from bcl import zoo

    if name is not None:
        agent = zoo.named(name.removeprefix(zoo.PREFIX))
        print((agent.folder / zoo.ABOUT).read_text(), end="")
        return
    names = zoo.names()
    if not names:
        raise WeightsError("the zoo of this installation is empty", zoo.RESTORE)
    within = "the worst within each budget at which all attacks of a suite were played"
    print(f"mean return by budget (0: no attack), {within}:")
    for agent in map(zoo.named, names):
        returns = ", ".join(f"{eps}: {mean:.4g}" for eps, mean in agent.within.items())
        print(f"  {agent.folder.name:<20}{agent.game:<14}{agent.recipe:<14}{returns} ({agent.suite})")
    print()
    _print_next("attack", zoo.PREFIX + names[0], "--suite", "quick", "--eps", "10/255", "--episodes", "1")


def presets(game: str | None = None, *, recipe: str | None = None, settings: Settings = NONE) -> None:
    """List the games with a preset and the recipes, or print the whole configuration of one game with help.

    Args:
        game: A preset, an Atari or Procgen game, or a Gymnasium id.
        recipe: Print the configuration as this recipe sets it.
    """
    from bcl import recipes
    from bcl.config import preset_names, resolve

    if game is not None:
        _print_configuration(game, recipe, settings)
        return
    print("games with a preset (any other Atari, Procgen or Gymnasium game takes the defaults):")
    for name in preset_names():
        config = resolve(name)
        print(f"  {name:<14}{config.game.engine:<11}{config.algo}")
    print("\nrecipes:")
    for name, known in recipes.RECIPES.items():
        print(f"  {name:<16}{known.summary}{' (ours)' if known.ours else ''}")
    print("\nnext: bcl presets pong --recipe bcl-mos-at")


def _print_configuration(game: str, recipe: str | None, settings: Settings) -> None:
    from bcl.config import resolve_stages
    from bcl.settings import difference, setting_line, to_toml

    *earlier, (stage, config) = resolve_stages(game, recipe=recipe, flags=settings)
    unused = "dqn" if config.algo == "ppo" else "ppo"
    for number, (before, other) in enumerate(earlier, 1):  # comments: the output is a configuration file
        print(f"# stage {number} of {len(earlier) + 1}, loss {before.loss}, strategy {before.strategy}:")
        for key in difference(other, config):
            if not key.startswith(f"{unused}."):
                print(f"#   {setting_line(other, key)}")
    if earlier:
        print(f"# stage {len(earlier) + 1}, loss {stage.loss}, strategy {stage.strategy}: what follows")
    print(to_toml(config, comments=True, without=unused), end="")


def import_(call: Call, *, out: Path, settings: Settings = NONE) -> None:
    """Import.

    Args:
        out: The file to write; must not exist.
    """
    from bcl.config import resolve

    if os.path.lexists(out):
        raise StoreError(f"'{out}' exists already", "give another --out")
    file, format, game = call.args
    config = resolve(game, flags=settings)  # before PyTorch is imported
    policy = call.func(file, format, config.game, **call.keywords)
    bcl.save(policy, out)
    parameters = counted(sum(p.numel() for p in policy.parameters()), "parameter")
    actions = counted(policy.spec.num_actions, "action")
    print(f"{out}: {policy.spec.kind} for {policy.spec.algo}, {parameters}, {actions}, {game}")
    _print_next("attack", out)


def bench(
    what: Literal["env", "attack"],
    *games: str,
    num_envs: int = 32,
    threads: int = 0,
    seconds: float = 2.0,
    device: str = "auto",
) -> None:
    """Measure this machine: agent steps per second of games under random play, or of play under attack.

    Args:
        what: Games alone (env), or PGD-30, RI-FGSM and Multi-T on an untrained network (attack).
        games: Games to measure; by default all presets for env, pong for attack.
        num_envs: Copies stepped together.
        threads: Emulator threads for env; 0 lets the engine choose.
        seconds: Time per row, about.
        device: Where attacks run: auto, cpu or cuda.
    """
    if not 0 < seconds < 3600 or num_envs < 1 or threads < 0:
        raise ConfigError("cannot measure that", "seconds lie in (0, 3600), copies from 1, threads from 0")
    if what == "attack":
        _bench_attacks(games or ("pong",), num_envs, seconds, device)
    else:
        _bench_games(games, num_envs, threads, seconds)


def _bench_attacks(games: tuple[str, ...], num_envs: int, seconds: float, device: str) -> None:
    from bcl.api.agents import pick_device
    from bcl.attacks import attack_by_name
    from bcl.config import resolve
    from bcl.evaluation.speed import attack_speed, untrained_policy

    device = pick_device(device)
    copies = counted(num_envs, "copy", "copies")
    print(f"agent steps/s under attack at 3/255, {copies}, untrained network, {device}")
    for name in games:
        game = resolve(name).game
        policy = untrained_policy(game, device)
        for attack in map(attack_by_name, ("pgd-30", "ri-fgsm", "multi-t")):
            first = attack_speed(policy, game, attack, 3 / 255, copies=num_envs, steps=1)
            steps = max(1, min(1000, int(first * seconds / num_envs)))
            rate = attack_speed(policy, game, attack, 3 / 255, copies=num_envs, steps=steps)
            print(f"  {name:<14}{attack!r:<90}{rate:>10,.1f}", flush=True)


def _bench_games(games: tuple[str, ...], num_envs: int, threads: int, seconds: float) -> None:
    from bcl.config import preset_names, resolve

    copies = counted(num_envs, "copy", "copies")
    print(f"agent steps/s, {copies}, random actions, {counted(os.cpu_count() or 1, 'core')}")
    for name in games or preset_names():
        for label, game in _pipelines(resolve(name).game):
            try:
                rate = f"{_steps_per_second(game, num_envs, threads, seconds):>10,.0f}"
            except MissingExtra as error:
                if games:  # asked for by name
                    raise
                rate = f"  skipped: {error}"
            print(f"  {name:<14}{game.engine:<11}{label:<10}{rate}", flush=True)


def _pipelines(game: "Game") -> Iterator[tuple[str, "Game"]]:
    """The ways in which a game can be seen."""
    from bcl.games import AtariGame

    if not isinstance(game, AtariGame):
        yield "", game
        return
    for pool in ("gray", "rgb"):
        yield pool, dataclasses.replace(game, pool=pool)
    if game.id == "road_runner":
        yield "v1", dataclasses.replace(game, pipeline="v1", num_actions=0)


def _steps_per_second(game: "Game", num_envs: int, threads: int, seconds: float) -> float:
    """Agent steps of all copies together per second, start-up excluded."""
    import torch

    from bcl.envs import make_env

    warm_up = 5
    envs = make_env(game, num_envs, threads=threads)
    envs.reset(0)
    draws = torch.Generator().manual_seed(0)
    vector_steps = 0
    start = time.perf_counter()
    while vector_steps < 20 or time.perf_counter() - start < seconds:
        envs.send(torch.randint(envs.num_actions, (num_envs,), generator=draws))
        envs.recv()
        vector_steps += 1
        if vector_steps == warm_up:
            start = time.perf_counter()
    elapsed = time.perf_counter() - start
    envs.close()
    return (vector_steps - warm_up) * num_envs / elapsed
