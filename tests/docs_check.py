"""Every command in README.md and docs/, run in an empty folder with small budgets.

    python tests/docs_check.py [PAGE...]      # `make docs-check`

The `sh` and `python` blocks of a page are run in order, page by page, then the scripts that its text names, then a training of
every recipe that its text names. Other commands in the text are parsed only. What a page takes for granted lies in its folder (see `prepare`). Pages keep the commands that people need; here a training gets few steps, an
evaluation one episode and one attack, a benchmark an instant. What is not run stands in NOT_RUN with its reason.
tests/test_docs.py holds that nothing else is left out, and that every command line parses.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

# Besides, of trainings in the text that differ in the game alone the first is run: all of them would take half an hour.
NOT_RUN = {
    r"make (demo|test|docs)": "continuous integration tests; tests/test_examples.py runs the demo in short; `make docs` is for people",
    r"pip install": "changes the environment; `make install` does the same",
    r"ray start": "needs other machines; tests/experiment/test_ray.py simulates them",
    r"bcl train .*--ray-address": "needs a cluster; tests/experiment/test_ray.py simulates one",
    r"bcl train .*--wandb": "needs a package of 100 MB; tests/experiment/test_work.py has a stand-in",
    r"tensorboard ": "serves until it is stopped",
    r"python benchmarks/released.py": "needs the published weights; tests/policies imports them where they are",
}
# What stands for anything in the text, as in `bcl status RUN`.
PLACEHOLDERS = {"RUN": "runs/x", "FILE": "x.pt", "GAME": "cartpole", "R": "at", "F": "sb3", "G": "cartpole", "S": "0"}

SMALL: dict[str, dict[str, Any]] = {
    "dqn": {
        "steps": 64,
        "num_envs": 4,
        "batch_size": 16,
        "samples_per_step": 4,
        "replay_initial": 16,
        "ramp_start": 0,
        "ramp_steps": 48,
    },
    "ppo": {"steps": 64, "num_envs": 4, "rollout": 16, "batch_size": 32, "epochs": 1},
    "curriculum": {"runs": 1, "min_runs": 1, "max_runs": 1, "judged_by": "quick"},
    "evaluation": {"episodes": 1, "max_steps": 10, "suite": "quick"},
}
SMALL_FLAGS = [f"--{section}.{key}={value}" for section, table in SMALL.items() for key, value in table.items()]
# Command -> options that are replaced, and what replaces them.
SMALLER = {
    "attack": (["--suite", "--attack", "--episodes"], ["--attack", "noise", "--episodes", "1", "--num-envs", "2"]),
    "certify": (["--method", "--episodes"], ["--method", "ibp", "--episodes", "1"]),
    "bench": (["--seconds", "--num-envs"], ["--seconds", "0.01", "--num-envs", "2"]),
}
# Script -> the options of a short run.
SCRIPTS = {
    "examples/demo.py": ["--quick", "--parallel", "1"],
    "benchmarks/curriculum.py": ["--device", "cpu", "--runs", "1", "--parallel", "1"],
    "benchmarks/dqn.py": shlex.split(
        "--device cpu --num-envs 4 --batch 16 --fill 32 --seconds 0.5 --losses at --no-reference"
    ),
    "benchmarks/evaluate.py": shlex.split("--device cpu --copies 2 --steps 2 --seconds 0.1 --attacks RI-FGSM"),
    "benchmarks/ppo.py": shlex.split("--device cpu --num-envs 4 --rollout 16 --batch 32 --seconds 0.5 --losses at"),
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


def name(page: Path) -> str:
    """Of a page, from the root."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page."""
    text = page.read_text()
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(page, text[: match.start()].count("\n") + 2, match[1], match[2])


def spans(page: Path) -> list[str]:
    """Code in the text of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


def span_words(span: str) -> list[str]:
    """A command in the text as words, every placeholder with a value."""
    return [PLACEHOLDERS.get(word, word) for word in shlex.split(span)]


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
    return words[0] == "bcl" or (words[0] == "python" and words[1] in SCRIPTS)


def small(words: list[str]) -> list[str]:
    """The same command with a small budget."""
    if words[0] == "python":
        return [sys.executable, str(ROOT / words[1]), *words[2:], *SCRIPTS[words[1]]]
    name, rest = words[1], words[2:]
    if name == "train":
        rest = [*rest, *([] if "--budget" in rest else ["--budget", "small"]), *SMALL_FLAGS]
    elif name in SMALLER:
        replaced, by = SMALLER[name]
        rest = [*without(rest, replaced), *by]
    return [sys.executable, "-m", "bcl", name, *rest]


def without(words: list[str], options: list[str]) -> list[str]:
    """Words without these options and their values."""
    kept, dropping = [], False
    for word in words:
        dropping = word in options or (dropping and not word.startswith("--"))
        kept += [] if dropping else [word]
    return kept


def prepare(folder: Path, short: Path) -> None:
    """What pages take for granted: an agent, an agent of Stable-Baselines3 and a published checkpoint (untrained, all three)
    in one folder; in the other the commands `bcl` and `python`, which shorten what they are asked for."""
    import stable_baselines3
    import torch

    import bcl
    from bcl.config import resolve
    from bcl.evaluation.speed import untrained_policy

    folder.mkdir()
    short.mkdir()
    for command in ("bcl", "python"):
        (short / command).write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__)} --short {command} "$@"\n')
        (short / command).chmod(0o755)
    bcl.save(untrained_policy(resolve("cartpole").game, "cpu"), folder / "policy.safetensors")
    stable_baselines3.PPO("MlpPolicy", "CartPole-v1", n_steps=64, seed=0).save(folder / "my_agent.zip")
    weights = untrained_policy(resolve("fruitbot").game, "cpu").network.state_dict()
    body = {k.replace("body.", "model.", 1).replace(".path.", ".model."): w for k, w in weights.items() if "body" in k}
    head = {part: torch.cat([weights[f"logits.{part}"], weights[f"value.{part}"]]) for part in ("weight", "bias")}
    both = {f"{name}.{part}": tensor for name in ("model.16", "logits_fc") for part, tensor in head.items()}
    torch.save(body | both, folder / "FruitBot_ppo.pt")


def run_python(code: str) -> None:
    """A Python block, its trainings and evaluations with small budgets."""
    import bcl
    from bcl.settings import merge

    train, evaluate, certify = bcl.train, bcl.evaluate, bcl.certify
    bcl.train = lambda game, **options: train(game, **merge(options, {"budget": "small", **SMALL}))
    bcl.evaluate = lambda agent, **options: evaluate(agent, **options | {"attacks": ["noise"], "episodes": 1})
    bcl.certify = lambda agent, **options: certify(agent, **options | {"method": "ibp", "episodes": 1})
    exec(compile(code, "block", "exec"), {"__name__": "__main__"})


def scripts(page: Path) -> Iterator[tuple[str, str, list[str]]]:
    """What of a page is run: where it stands, what it says, and the words that run it."""
    for block in blocks(page):
        if block.language == "python":
            code = f"from tests.docs_check import run_python; run_python({block.text!r})"
            yield block.where, "python block", [sys.executable, "-c", code]
        elif block.language == "sh":
            lines = [line for line in block.text.replace(".venv/bin/", "").splitlines() if line.strip()]
            run = [line for line in lines if not any(reason_not_to_run(words) for words in commands(line))]
            if run:
                yield block.where, "\n    ".join(["", *run]), ["bash", "-ec", "\n".join(run)]
    for span in dict.fromkeys(span for span in spans(page) if span.startswith("python ")):
        if not reason_not_to_run(span_words(span)):
            yield name(page), span, span_words(span)
    for number, words in enumerate(trainings(page), 1):
        yield name(page), shlex.join(words), [*words, "--out", f"runs/of-the-text-{number}"]


def trainings(page: Path) -> list[list[str]]:
    """Whole training commands in the text of a page, the first with each recipe and options."""
    first: dict[tuple[str, ...], list[str]] = {}
    for words in (span.split() for span in spans(page) if re.match(r"bcl train [a-z]\S* --recipe [a-z]", span)):
        if "--out" not in words and not reason_not_to_run(words):
            first.setdefault(tuple(words[3:]), words)
    return [*first.values()]


def check(page: Path) -> Iterator[str]:
    """Run a page; yield what failed."""
    with tempfile.TemporaryDirectory(prefix="bcl-docs-") as temporary:
        folder, short = Path(temporary) / "page", Path(temporary) / "bin"
        path = {"PATH": f"{short}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        environment = os.environ | path | {"OMP_NUM_THREADS": "1", "COLUMNS": "120"}
        for number, (where, shown, words) in enumerate(scripts(page)):
            if number == 0:
                prepare(folder, short)
            began = time.monotonic()
            done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
            took = f"{time.monotonic() - began:5.1f} s"
            print(f"{'ok    ' if done.returncode == 0 else 'FAILED'} {took}  {where}  {shown}", flush=True)
            if done.returncode:
                yield f"{where}: {shown}\n{done.stdout}{done.stderr}"


def main() -> None:
    """Run all pages, or those named."""
    if sys.argv[1:2] == ["--short"]:
        words = small(sys.argv[2:])
        os.execv(words[0], words)
    pages = [Path(page).resolve() for page in sys.argv[1:]] or PAGES
    failed = [failure for page in pages for failure in check(page)]
    sys.exit("\n".join(failed) or 0)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
