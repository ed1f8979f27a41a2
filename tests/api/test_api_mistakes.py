"""Every parameter of every public function refuses what it cannot use: one sentence, which names it, before any
work."""

import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bcl
from bcl.attacks import PGD
from bcl.config import resolve
from bcl.policies import Policy, PolicySpec

NAN = float("nan")
AGENT = "agent.safetensors"
FOLDER = "folder"  # that holds nothing
PATHS = (None, 3, "", "a\0b", "missing")
AGENTS = (*PATHS, FOLDER, "text.txt", [AGENT], nn.Linear(4, 2))
GAMES = (None, 3, "", "cartpol", [], functools.partial(int))
DEVICES = ("x", "", None, 3, "cuda:x", "cuda:99", "meta")
NUMBERS = (NAN, 1.5, "2", None, True, [], -1)
SWITCHES = ("x", 1, None)
FUNCTIONS = (3, "print")
BUDGETS = (NAN, float("inf"), -0.1, 3, "x", "1/0", [], [None], {}, True, 3j, torch.tensor(0.1))
LEVELS = ("x", "", 3, [])
LISTENERS = (None, 3, print)
# Of the last one, only the address in memory would say which it is, and another attack may have that tomorrow.
ATTACKS = (3, "", "pdg-30", "pgd-0", "nowhere:Attack", PGD, lambda policy, obs, eps, generator: obs)
FIND: dict[str, Any] = {"find_eps": True}


def agent() -> Policy:
    game = resolve("cartpole").game
    return Policy(PolicySpec("plain-mlp", (4,), 2, (-1.0,) * 4, (1.0,) * 4, (8,), game=game))


Wrong = dict[str, tuple[Any, ...]]
# Function -> arguments that are right, and for each parameter values that are not.
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any], Wrong]] = {
    "load": ((AGENT,), {}, {"path": AGENTS, "device": DEVICES}),
    "save": ((agent(), "new.safetensors"), {}, {"policy": (None, AGENT, nn.Linear(4, 2)), "path": (None, 3, "", "a\0b", FOLDER)}),
    "wrap": ((nn.Linear(4, 2), "cartpole"), {}, {"network": (None, AGENT, nn.Linear), "game": GAMES}),
    "make_env": (
        ("cartpole", 1),
        {},
        {"game": GAMES, "num_envs": (*NUMBERS, 0), "device": DEVICES, "threads": NUMBERS, "render": SWITCHES},
    ),
    "import_policy": (
        (AGENT, "sb3", "cartpole"),
        {},
        {
            "path": (*PATHS, FOLDER, "text.txt"),
            "format": (None, 3, "", "sb4"),
            "game": GAMES,
            "normalise": (3, "", "missing", FOLDER),
            "settings": (),
            "dqn": (3, {"steps": 1}),
            "nonsense": (1,),
        },
    ),
    "evaluate": (
        (AGENT,),
        {"episodes": 1},
        {
            "agent": AGENTS,
            "suite": (3, "", "quik", ["quick"]),
            "attacks": (*ATTACKS, [], [3]),
            "eps": BUDGETS,
            "episodes": (*NUMBERS[:3], True, [], -1, 0),
            "seed": NUMBERS,
            "env_set": LEVELS,
            "protocol": ("x", None, 3),
            "precision": ("x", None, 3),
            "num_envs": NUMBERS,
            "starts": ("x", "", 3),
            "device": DEVICES,
            "sanity": SWITCHES,
            "parallel": (*NUMBERS, 0),
            "find_eps": SWITCHES,
            "threshold": (NAN, float("inf"), "x", [], True),
            "listener": LISTENERS,
        },
    ),
    "certify": (
        (AGENT,),
        {"episodes": 1},
        {
            "agent": AGENTS,
            "eps": BUDGETS,
            "method": (None, 3, "", "crow"),
            "episodes": (*NUMBERS[:3], True, [], -1, 0),
            "seed": tuple(number for number in NUMBERS if number is not None),  # none: the verdict's
            "env_set": LEVELS,
            "device": DEVICES,
            "parallel": (*NUMBERS, 0),
            "listener": LISTENERS,
        },
    ),
    "video": (
        (AGENT,),
        {"steps": 1},
        {
            "agent": AGENTS,
            "attack": (*ATTACKS, None, []),
            "eps": (*BUDGETS, [0.1]),
            "seed": NUMBERS,
            "steps": NUMBERS,
            "fps": (NAN, 0, -1, "x", None, True, float("inf")),
            "env_set": LEVELS,
            "out": (3, "", "a\0b", "text.txt", "film.mp4"),
            "device": DEVICES,
            "listener": LISTENERS,
        },
    ),
    "report": (
        (AGENT,),
        {"frames": False},
        {
            "run": (*PATHS, FOLDER, "text.txt"),
            "out": (3, "", "a\0b", FOLDER),
            "frames": SWITCHES,
            "device": DEVICES,
            "say": FUNCTIONS,
        },
    ),
    "status": (("run",), {}, {"folder": (*PATHS, FOLDER, AGENT)}),
    "zoo_agents": ((), {}, {"name": (3, "", "pong-radical", [])}),
    "presets": (
        ("cartpole",),
        {},
        {"game": GAMES[1:], "recipe": (3, "", "att", FOLDER), "settings": (), "dqn": (3, {"stepz": 1}), "nonsense": (1,)},
    ),
    "bench": (
        ("env", "cartpole"),
        {},
        {
            "what": (None, 3, "", "what"),
            "games": GAMES,
            "num_envs": (*NUMBERS, 0),
            "threads": NUMBERS,
            "seconds": (NAN, 0, -1, "x", None, True, float("inf"), 3600),
            "device": DEVICES,
            "say": FUNCTIONS,
        },
    ),
    "compare": ((), {}, {"runs": (*PATHS, FOLDER, "text.txt", [AGENT])}),
    "train": (
        ("cartpole",),
        {"out": "run"},
        {
            "game": GAMES,
            "recipe": (3, "", "att", "missing.toml", FOLDER),
            "out": (3, "", "a\0b", FOLDER + "/held", "text.txt"),
            "seed": (NAN, 1.5, "x", -1, True, []),
            "size": ("tiny", 3, []),
            "init": AGENTS[1:],
            "config": (3, "", "missing", FOLDER, "text.txt"),
            "repeats": (0, -1, 1.5, "2", None),
            "workers": (None, 2, {"parallel": 2}),
            "say": FUNCTIONS,
            "progress": ("x", 1),
            "on_row": FUNCTIONS,
            "as_command": (None, 1),
            "settings": (),
            "dqn": (3, None, [], {"steps": NAN}, {"steps": -1}, {"stepz": 1}, {3: 4}),
            "curriculum": (3, {"target": NAN}, {"judged_by": []}, {"judged_by": 3}),
            "evaluation": ("x", {"eps": []}, {"eps": [3]}),
            "algo": (3, "dqm", None),
            "nonsense": (1,),
        },
    ),
    "resume": (
        ("run",),
        {},
        {
            "folder": (*PATHS, FOLDER, AGENT),
            "workers": (None, 2),
            "say": FUNCTIONS,
            "progress": ("x", 1),
            "on_row": FUNCTIONS,
            "as_command": (None, 1),
            "settings": (),
        },
    ),
    "Workers": (
        (),
        {},
        {
            "device": (None, 3),
            "executor": (None, 3, "cloud", []),
            "parallel": (NAN, 1.5, "2", None, True),
            "judge_beside": (None, 3, "maybe"),
            "ray_address": (3, True),
            "ray_cpus": (NAN, "x", None, True),
            "ray_gpus": (NAN, "x", None, True),
            "tensorboard": SWITCHES,
            "wandb": (None, 3),
        },
    ),
}  # fmt: skip


def wrong_calls() -> Iterator[Any]:
    for function, (_, _, wrong) in CALLS.items():
        for parameter, values in wrong.items():
            for value in values:
                yield pytest.param(function, parameter, value, id=f"{function}-{parameter}-{str(value)[:20]!r}")


def with_wrong(function: str, parameter: str, value: Any) -> Callable[[], object]:
    """The call whose other arguments are right."""
    called = getattr(bcl, function)
    if function == "compare":
        return functools.partial(called, value)
    positional, named, _ = CALLS[function]
    names = [*inspect.signature(called).parameters][: len(positional)]
    first = [value if name == parameter else right for name, right in zip(names, positional, strict=True)]
    rest = named | ({} if parameter in names else {parameter: value})
    return functools.partial(called, *first, **rest, **(FIND if parameter == "threshold" else {}))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an agent, a folder and a file of text; the current one."""
    monkeypatch.chdir(tmp_path)
    bcl.save(agent(), AGENT)
    Path(FOLDER, "held").mkdir(parents=True)
    Path(FOLDER, "held", "notes").touch()
    Path("text.txt").write_text("nothing of use")
    return tmp_path


@pytest.mark.parametrize(("function", "parameter", "value"), [*wrong_calls()])
def test_a_wrong_argument_is_named_in_one_sentence(function: str, parameter: str, value: Any, place: Path) -> None:
    before = sorted(place.rglob("*"))
    call = with_wrong(function, parameter, value)
    with pytest.raises(bcl.BclError) as raised:
        call()
    sentence = str(raised.value)
    assert "\n" not in sentence
    assert raised.value.hint
    named_so = {parameter, parameter.removesuffix("s"), parameter.replace("_", "-"), parameter.replace("_", " ")}
    assert any(word in sentence for word in named_so) or (value and str(value) in sentence), sentence
    assert sorted(place.rglob("*")) == before, "nothing was written"


def test_every_parameter_of_every_public_function_is_tried() -> None:
    functions = {name for name in bcl.__all__ if inspect.isfunction(getattr(bcl, name))} | {"Workers"}
    assert functions == {*CALLS}
    for name in functions:
        assert {*inspect.signature(getattr(bcl, name)).parameters} <= {*CALLS[name][2]}, name


def test_a_network_that_no_memory_holds_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> Policy:  # what PyTorch raises; a machine may promise any size
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000000000 bytes")

    monkeypatch.setattr("bcl.experiment.run.Policy", no_memory)
    with pytest.raises(bcl.BclError, match=r"more memory than there is; lower network\.hidden"):
        bcl.train("cartpole", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
