"""The commands of README.md and docs/: where they stand, how each is shortened, and which are not run.

Attacks, suites and methods of certificates are those that the page names, at the first budget, for one episode, which
docs_check.py ends after a few steps. Trainings are evaluated under `quick`.

tests/docs_check.py runs them; tests/test_docs.py holds that none is left out, and that every command line parses.
"""

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bcl.recipes import find_recipe

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

NOT_RUN = {
    r"make (demo|test|lint|docs)": "`make test` is for continuous integration, tests/test_examples.py runs the demo in short, `make docs` is for people",
    r"ruff |mypy |python -m pytest": "`make test` does the same",
    r"make install": "`make docs-check` begins with it",
    r"pip install|pip wheel|apt-get install": "changes the machine, or the clone",
    r"ray start": "needs other machines; tests/runs/test_ray_executor.py simulates them",
    r"bcl train .*--ray-address": "needs a cluster; tests/runs/test_ray_executor.py simulates one",
    r"bcl train .*--wandb": "needs a package of 100 MB; tests/experiment/test_worker.py has a stand-in",
    r"tensorboard ": "serves until it is stopped",
    r"python benchmarks/curriculum.py .*--recipe": "trains curricula; tests/test_benchmarks.py does so with few steps",
    r"python benchmarks/impala.py": "needs a GPU with Triton",
    r"python benchmarks/evaluate.py .*--cells": "plays whole suites; tests/test_benchmarks.py does so with one attack",
    r"python benchmarks/(campaign|minutes).py": "trains for minutes, and reads what that left; tests/test_benchmarks.py has both in short",
    r"python benchmarks/publish.py": "needs an agent and its results, and writes into the package; tests/test_zoo.py publishes one",
    r"python benchmarks/add_results.py": "writes into the package; tests/test_zoo.py adds results to an agent",
    r"python benchmarks/released.py": "needs the published weights; tests/policies imports them where they are",
}
# Code in the text that begins with one of these and goes on is a command.
PROGRAMS = ("bcl", "python", "make", "pip", "apt-get", "ray", "tensorboard", "pytest", "ruff", "mypy", "mkdocs", "git")
# What stands for anything in the text, as in `bcl status RUN`; A_RUN is trained before.
A_RUN = "runs/x"
PLACEHOLDERS = {
    "RUN": A_RUN,
    "zoo:NAME": "zoo:fruitbot-distilled",  # of a game with levels
    "NAME": "fruitbot-distilled",
    "FILE": "my_agent.zip",
    "GAME": "cartpole",
    "R": "at",
    "F": "sb3",
    "G": "cartpole",
    "S": "0",
    "policy.safetensors": "imported.safetensors",  # only importing names it in the text, and it exists
}

SMALL_LEARNERS: dict[str, dict[str, Any]] = {
    "dqn": {
        "steps": 64,
        "num_envs": 4,
        "batch_size": 8,
        "samples_per_step": 4,
        "replay_initial": 16,
        "ramp_start": 0,
        "ramp_steps": 16,
    },
    "ppo": {"steps": 32, "num_envs": 2, "rollout": 8, "batch_size": 16, "epochs": 1},
}
SMALL_PHASES = {"runs": 1, "min_runs": 1, "max_runs": 1}
SMALL_PACE = {"pace_episodes": 1, "floor": -1000}  # above which any return of a small game is
SMALL_STUDENT = {"steps": 80, "num_envs": 4, "batch_size": 16, "samples_per_step": 4, "log_steps": 8}
SMALL_EVALUATION = {"episodes": 1, "eps": "0.05", "score_eps": "0.05"}


def small_settings(learner: str, recipe: str = "vanilla", *, given: bool = False) -> dict[str, dict[str, Any]]:
    """Of a training that takes an instant; those that its recipe uses. `given`: the agent that it starts from is."""
    strategies = {stage.strategy for stage in find_recipe(recipe).stages}
    losses = {stage.loss for stage in find_recipe(recipe).stages}
    judged = {"judged_by": "quick"} if strategies - {"none"} else {}
    phases = SMALL_PHASES if strategies & {"next", "skip", "open"} else {}
    curriculum = judged | phases | (SMALL_PACE if "paced" in strategies else {})
    attacked = {} if recipe == "vanilla" else {"suite": "quick"}
    learns = {} if given and losses == {"distill"} else {learner: SMALL_LEARNERS[learner]}
    student = {"distill": SMALL_STUDENT} if "distill" in losses else {}
    return {**learns, **student, "curriculum": curriculum, "evaluation": SMALL_EVALUATION | attacked}


def small_options(learner: str, recipe: str = "vanilla", *, given: bool = False) -> list[str]:
    """The same as options."""
    tables = small_settings(learner, recipe, given=given).items()
    return [f"--{name}.{key}={value}" for name, table in tables for key, value in table.items()]


# Command -> options that are replaced, and what replaces them.
SMALLER = {
    "attack": ["--episodes", "1", "--num-envs", "1"],
    "certify": ["--episodes", "1"],
    "bench": ["--seconds", "0.01", "--num-envs", "2"],
}
PROCGEN = ("fruitbot", "jumper")
PPO_AGENT = "mine.safetensors"  # imported from what docs_check.prepare leaves
# Script -> the options of a short run.
SCRIPTS = {
    "examples/demo.py": ["--quick", "--parallel", "1"],
    "benchmarks/curriculum.py": [
        "--device",
        "cpu",
        "--runs",
        "1",
        "--parallel",
        "1",
        *small_options("dqn", "bcl-mos-at"),
    ],
    "benchmarks/dqn.py": shlex.split(
        "--device cpu --num-envs 4 --batch 16 --fill 32 --seconds 0.5 --losses at --no-reference"
    ),
    "benchmarks/evaluate.py": shlex.split("--device cpu --copies 2 --steps 2 --seconds 0.1 --attacks RI-FGSM"),
    "benchmarks/foresight.py": ["--episodes", "1"],
    "benchmarks/landscape.py": ["--states", "1"],
    "benchmarks/leaderboard.py": ["--out", "leaderboard.md"],
    "benchmarks/ppo.py": shlex.split(
        "--device cpu --num-envs 4 --rollout 16 --batch 32 --seconds 0.5 --losses at --no-reference"
    ),
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        """For messages."""
        return f"{name(self.page)}:{self.line}"


@dataclass(frozen=True)
class Piece:
    """What is run in one go: where it stands, what it says, and the words that run it."""

    where: str
    shown: str
    words: list[str]


def name(page: Path) -> str:
    """Of a page, from the root."""
    return os.path.relpath(page, ROOT)


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page."""
    text = page.read_text()
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(page, text[: match.start()].count("\n") + 2, match[1], match[2])


def spans(page: Path) -> list[str]:
    """Code in the text of a page, also where it goes on in the next line."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    paragraphs = text.split("\n\n")
    return [" ".join(span.split()) for paragraph in paragraphs for span in re.findall(r"`([^`]+)`", paragraph)]


def span_commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Commands in the text of a page, each with the words that can be run: placeholders have values, what is left out
    is filled in, and the name of a command alone asks for its help."""
    for span in spans(page):
        program, _, rest = span.removeprefix(".venv/bin/").partition(" ")
        if program not in PROGRAMS or not rest:
            continue
        words = [program, *(PLACEHOLDERS.get(word, word) for word in shlex.split(rest))]
        if program == "bcl" and len(words) == 2:
            words.append("--help")
        elif program == "bcl" and words[2].startswith("--"):  # `bcl train --repeats 3`
            words.insert(2, PLACEHOLDERS["GAME"] if words[1] == "train" else A_RUN)
        yield span, words


def commands(text: str) -> list[list[str]]:
    """The commands of a shell block as words: without comments, redirections, the lines of loops and `.venv/bin/`."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        for words in split_at([*lexer], ("&&", ";", "|")):
            words = words[: words.index(">")] if ">" in words else words
            words = words[1:] if words[:1] == ["do"] else words
            if words and words[0] not in ("for", "done"):
                found.append([words[0].removeprefix(".venv/bin/"), *words[1:]])
    return found


def split_at(words: list[str], marks: tuple[str, ...]) -> Iterator[list[str]]:
    """The stretches of words between marks."""
    start = 0
    for end in [*(i for i, word in enumerate(words) if word in marks), len(words)]:
        yield words[start:end]
        start = end + 1


def reason_not_to_run(words: list[str]) -> str | None:
    """Why a command is not run; none: it is."""
    line = shlex.join(words)
    return next((reason for pattern, reason in NOT_RUN.items() if re.match(pattern, line)), None)


def is_run(words: list[str]) -> bool:
    """Whether this is a command that can be run."""
    return words[0] == "bcl" or words[:2] == ["tar", "xf"] or (words[0] == "python" and words[1] in SCRIPTS)


def small(words: list[str]) -> list[str]:
    """The same command made short; a script by its path."""
    if words[0] == "python":
        return [str(ROOT / words[1]), *words[2:], *SCRIPTS[words[1]]]
    name, rest = words[1], words[2:]
    if name == "train" and "--help" not in rest:
        rest += ["--algo", "ppo"] if PPO_AGENT in rest else []
        learner = "ppo" if rest[0] in PROCGEN or "ppo" in rest else "dqn"
        recipe = rest[rest.index("--recipe") + 1] if "--recipe" in rest else "vanilla"
        options = small_options(learner, recipe, given="--init" in rest)
        rest = [*rest, *([] if "--size" in rest else ["--size", "small"]), *options]
    elif name == "video" and "--steps" not in rest:
        rest = [*rest, "--steps", "20"]
    elif name in SMALLER and "--help" not in rest:
        by = SMALLER[name]
        rest = [*with_one_budget(without(rest, [word for word in by if word.startswith("--")])), *by]
    return ["bcl", name, *rest]


def without(words: list[str], options: list[str]) -> list[str]:
    """Words without these options and their values."""
    kept, dropping = [], False
    for word in words:
        dropping = word in options or (dropping and not word.startswith("--"))
        kept += [] if dropping else [word]
    return kept


def with_one_budget(words: list[str]) -> list[str]:
    """Words with the first value of `--eps` alone."""
    if "--eps" not in words:
        return words
    first = words.index("--eps") + 1
    end = next((place for place in range(first, len(words)) if words[place].startswith("--")), len(words))
    return [*words[: first + 1], *words[end:]]


def page_pieces(page: Path) -> Iterator[Piece]:
    """The blocks of a page, in order."""
    for block in blocks(page):
        if block.language == "python":
            yield Piece(block.where, "python block", ["python", "-c", block.text])
        elif block.language == "sh":
            text = block.text.replace(".venv/bin/", "").replace("\\\n", " ")
            lines = [line for line in text.splitlines() if line.strip()]
            run = [line for line in lines if not any(reason_not_to_run(words) for words in commands(line))]
            if run:
                yield Piece(block.where, "\n    ".join(["", *run]), ["bash", "-ec", "\n".join(run)])


def text_pieces(pages: Iterable[Path]) -> list[Piece]:
    """The commands in the text of pages, each once: scripts, then trainings, then what may need what these leave."""
    pieces: dict[str, Piece] = {}
    for page in pages:
        for span, words in span_commands(page):
            if not reason_not_to_run(words):
                pieces.setdefault(shlex.join(words), Piece(name(page), span, words))
    scripts = [piece for piece in pieces.values() if piece.words[0] == "python"]
    trainings = [piece for piece in pieces.values() if piece.words[:2] == ["bcl", "train"]]
    others = [piece for piece in pieces.values() if piece not in scripts and piece not in trainings]
    a_run = Piece("text", "the run that RUN stands for", ["bcl", "train", "cartpole", "--recipe", "at", "--out", A_RUN])
    return [*scripts, *([a_run] if others else []), *in_own_folders(trainings), *others]


def in_own_folders(trainings: Iterable[Piece]) -> Iterator[Piece]:
    """Trainings of the same game and recipe, with other options, would share a folder: all but the first get
    another."""
    taken = set()
    for number, piece in enumerate(trainings):
        run = tuple(piece.words[2:5])
        yield Piece(piece.where, piece.shown, [*piece.words, "--out", f"runs/{number}"]) if run in taken else piece
        taken.add(run)
