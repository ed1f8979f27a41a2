"""Put an agent and its results into the zoo of the package (docs/zoo.md).

    python benchmarks/publish.py NAME FILE --results FOLDER --config FILE --command "bcl train ..." --commit C
        --machine "NVIDIA H200" --minutes 8

FILE is the policy file, the folder what `bcl attack` and `bcl certify` left of it (FILE.results, or the run), the
configuration that of its training. Small weights are stored as they are, and those that were rounded to 8 bits before
they were judged stay so. Others are stored in 16 bits where that changes no action on any observation of a few nominal
episodes, so that these episodes are the same to the last step; otherwise as they are, if they fit.
"""

import argparse
import contextlib
import hashlib
import json
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from bcl import zoo
from bcl.attacks import Attack, attack_label, attack_labels, attacks_named
from bcl.config import EvaluationConfig, config_from_dict
from bcl.envs import make_env
from bcl.errors import BclError, ConfigError, StoreError, WeightsError
from bcl.evaluation import Breaking, Evaluation, game_for_evaluation, read_breaking, read_evaluations, watch
from bcl.evaluation.breaking import SHARE
from bcl.evaluation.plan import levels_of
from bcl.games import LOWEST_RETURNS
from bcl.policies import Policy
from bcl.policies.files import NumberFormat, fingerprint, load, to_bytes
from bcl.runs import store
from bcl.runs.directory import CONFIG, POLICY
from bcl.runs.results import Results
from bcl.settings import format_eps, read_toml

MAX_BYTES = 8_000_000
SMALL = 500_000  # bytes: rounding would save little
FORMS: tuple[NumberFormat, ...] = ("float16", "int16", "float32")  # the first that changes nothing and fits is taken


def changed_actions(policy: Policy, others: Sequence[Policy], episodes: int) -> tuple[int, list[int]]:
    """Steps of nominal episodes of `policy`, and on how many of them each of the others would have acted
    differently."""
    game = policy.spec.game
    if game is None:
        raise WeightsError("this policy does not say which game it plays", "save it with a game in its spec")
    steps, changed = 0, [0] * len(others)
    with contextlib.closing(make_env(game_for_evaluation(game, None, EvaluationConfig().max_steps), 1)) as env:
        for seed in range(episodes):
            for moment in watch(policy, env, None, 0.0, seed=seed):
                steps += 1
                with torch.no_grad():
                    actions = [int(other(torch.from_numpy(moment.clean)[None]).argmax()) for other in others]
                changed = [count + (action != moment.taken) for count, action in zip(changed, actions, strict=True)]
    return steps, changed


def smallest(policy: Policy, episodes: int) -> tuple[NumberFormat, bytes, Policy]:
    """The first form in which the agent fits and acts as it did, its bytes, and the agent as it will be loaded."""
    rounded = to_bytes(policy, "int8")
    if fingerprint(as_loaded := policy_in(rounded)) == fingerprint(policy):
        print(f"int8: {len(rounded):,} bytes, as it was judged")
        return "int8", rounded, as_loaded
    if len(exact := to_bytes(policy, "float32")) <= SMALL:
        print(f"float32: {len(exact):,} bytes, as it is")
        return "float32", exact, policy_in(exact)
    forms = {form: data for form in FORMS if len(data := to_bytes(policy, form)) <= MAX_BYTES}
    stored = {form: policy_in(data) for form, data in forms.items()}
    steps, changed = changed_actions(policy, [*stored.values()], episodes)
    for form, count in zip(stored, changed, strict=True):
        print(f"{form}: {len(forms[form]):,} bytes, {count} of {steps:,} actions changed")
    kept = [form for form, count in zip(stored, changed, strict=True) if count == 0]
    if not kept:
        raise WeightsError(
            f"no form of these weights within {MAX_BYTES:,} bytes acts as they do", "publish another agent"
        )
    return kept[0], forms[kept[0]], stored[kept[0]]


def policy_in(data: bytes) -> Policy:
    """As a file with this content is loaded."""
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(data)
        file.flush()
        return load(file.name)


def attacks_of(evaluation: Evaluation, suite: str) -> Sequence[Attack]:
    """Those of a suite that was played whole at some budget; else those that were played at every one."""
    wanted = attacks_named(suite)
    budgets = {eps for _, eps in evaluation.cells if eps > 0}
    if not budgets or any(all((attack, eps) in evaluation.cells for attack in wanted) for eps in budgets):
        return wanted
    played = dict.fromkeys(attack for attack, _ in evaluation.cells if attack)
    return [attack for attack in played if all((attack, eps) in evaluation.cells for eps in budgets)]


def means(evaluation: Evaluation, suite: str) -> dict[str, float]:
    """By budget, under the worst of `attacks_of`; budgets at which not all of them were played are left out."""
    wanted = attacks_of(evaluation, suite)
    lowest = {
        format_eps(eps): min(evaluation.cells[attack, eps].mean for attack in wanted)
        for eps in sorted({eps for _, eps in evaluation.cells if eps > 0})
        if wanted and all((attack, eps) in evaluation.cells for attack in wanted)
    }
    return {"0": evaluation.cells[None, 0.0].mean, **lowest}


def tables_of_returns(results: Results, agent: str, suite: str) -> list[str]:
    """Lines of `agent.toml`, the last ones: returns as the agent was trained, on unlimited levels, from varied starts;
    then where these faced other attacks than the suite, and at which budget the agent breaks."""
    evaluations = read_evaluations(results.scores, agent)
    searches = [search for search in read_breaking(results, agent) if search.conditions and halves(search)]
    lines = []
    others = []
    breaks = []
    for table, starts, unlimited in (
        ("returns", "game", False),
        ("unlimited", "game", True),
        ("varied", "varied", False),
    ):
        alike = [one for one in evaluations if one.starts == starts and (one.levels == "eval") == unlimited]
        if alike:
            best = max(alike, key=lambda one: len(one.scores))
            lines += ["", f"[{table}]"]
            lines += [f"{json.dumps(eps)} = {mean}" for eps, mean in means(best, suite).items()]
            faced = attacks_of(best, suite)
            if faced and faced != attacks_named(suite):
                others += [f"{table} = {json.dumps(', '.join(attack_labels(faced).values()))}"]
            facts = breaking_budget([search for search in searches if same_episodes(search, best)], best)
            breaks += ["", f"[breaks.{table}]", *facts] if facts else []
    if others:
        lines += ["", "[attacks]", *others]
    return [*lines, *breaks]


def halves(search: Breaking) -> bool:
    """Whether it looked for half of the return without attack, and not below a threshold of somebody's own."""
    assert search.conditions
    floor = LOWEST_RETURNS.get(search.conditions.plan.game.id, 0.0)
    return math.isclose(search.threshold, floor + SHARE * (search.nominal - floor))


def same_episodes(search: Breaking, evaluation: Evaluation) -> bool:
    """Whether the search was on the starts and levels of an evaluation."""
    assert search.conditions
    plan = search.conditions.plan
    return (plan.starts, levels_of(plan.game)) == (evaluation.starts, evaluation.levels)


def breaking_budget(searches: Sequence[Breaking], evaluation: Evaluation) -> list[str]:
    """The smallest one found, as lines of TOML. A score may be below the threshold at a smaller budget than searches
    found: of a learned adversary, with which nothing is searched."""
    if not searches:
        return []
    below = max(search.threshold for search in searches)
    found = [search.smallest for search in searches if search.smallest]
    found += [(s.eps, s.attack) for s in evaluation.scores if s.attack and s.mean < below]
    lines = [f"below = {below}"]
    if found:
        eps, attack = min(found, key=lambda one: one[0])
        lines += [f"eps = {json.dumps(searches[0].shown(eps))}", f"attack = {json.dumps(attack_label(attack))}"]
    return lines


def publish(options: argparse.Namespace) -> Path:
    """Write the agent's folder, in place of an earlier one of that name. All that can be wrong is looked at first."""
    if not re.fullmatch(r"[a-z0-9-]+", options.name):
        raise ConfigError(f"'{options.name}' is no name for an agent", "take small letters, digits and hyphens")
    if f"{zoo.PREFIX}{options.name}" in options.command.split():
        raise ConfigError(
            f"--command starts from {zoo.PREFIX}{options.name} itself", "say how to make that agent first"
        )
    policy, folder = load(options.file), zoo.FOLDER / options.name
    results, published_results = Results(options.results), Results(folder)
    identity, game = fingerprint(policy), policy.spec.game
    evaluations = read_evaluations(results.scores, identity)
    usual = [one for one in evaluations if one.starts == "game" and one.levels != "eval"]
    if not usual or game is None:
        what = f"'{options.results}' has no scores of '{options.file}' from the game's own starts, on training levels"
        raise StoreError(what, "evaluate it with 'bcl attack' first")
    config = config_from_dict(read_toml(options.config))
    form, data, published = smallest(policy, options.episodes)
    about = {
        "game": game.id,
        "recipe": config.recipe,
        "command": options.command,
        "seed": config.seed,
        "commit": options.commit,
        "machine": options.machine,
        "minutes": options.minutes,
        "notes": options.notes,
        "weights": form,
        "sha256": hashlib.sha256(data).hexdigest(),
        "policy": fingerprint(published),
        "judged": identity,
        "episodes": max(usual, key=lambda one: len(one.scores)).episodes,
        "suite": options.suite,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in about.items()]
    lines += tables_of_returns(results, identity, options.suite)
    shutil.rmtree(folder, ignore_errors=True)  # results of an earlier agent
    for _, row in results.scores.read(identity):
        published_results.scores.append(row)
    for _, row in results.certificates.read(identity):
        published_results.certificates.append(row)
    for _, row in results.searches.read(identity):
        published_results.searches.append(row)
    store.write_bytes(folder / POLICY, data)
    store.write_text(folder / CONFIG, options.config.read_text())
    store.write_text(folder / zoo.ABOUT, "\n".join([*lines, ""]))  # last: without it nobody sees the agent
    return folder


def main() -> None:
    """Publish, or say why not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="what follows zoo:")
    parser.add_argument("file", type=Path)
    for option in ("--results", "--config"):
        parser.add_argument(option, type=Path, required=True)
    for option in ("--command", "--commit", "--machine"):
        parser.add_argument(option, required=True)
    parser.add_argument("--minutes", type=float, required=True, help="of training, all stages")
    parser.add_argument("--notes", default="")
    parser.add_argument("--suite", default="paper", help="or an attack: whose worst the list of the zoo shows")
    parser.add_argument("--episodes", type=int, default=4, help="nominal episodes on which actions are compared")
    try:
        print(f"agent: {publish(parser.parse_args())}")
    except BclError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
