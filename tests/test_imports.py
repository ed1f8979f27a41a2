"""Imports point one way, which the table below says; and a class name means one class."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "bcl"
FACTS = {"errors", "settings", "layers", "games"}
ALLOWED = {
    "__init__": {"api", "policies", "envs", "errors", "evaluation", "result"},
    "__main__": {"cli"},
    "errors": set(),
    "layers": set(),
    "processes": set(),
    "settings": {"errors"},
    "games": {"errors", "settings"},
    "recipes": {"errors", "settings"},
    "config": FACTS | {"recipes"},
    "zoo": {"errors", "runs"},
    "attacks": {"errors", "settings"},
    "bounds": {"errors", "layers"},
    "envs": FACTS | {"processes"},
    "stats": set(),
    "result": {"errors"},
    "device": {"errors"},
    "schedules": set(),
    "losses": {"errors"},
    "curriculum_rules": {"errors", "config"},
    "curriculum": {"curriculum_rules", "errors"},
    "runs": {"errors", "processes", "config", "curriculum_rules", "recipes", "settings"},
    "policies": FACTS | {"envs", "runs", "zoo", "__init__"},
    "evaluation": FACTS | {"__init__", "attacks", "bounds", "device", "stats", "envs", "policies", "result", "runs"},
    "learners": FACTS
    | {
        "attacks",
        "bounds",
        "config",
        "envs",
        "device",
        "losses",
        "policies",
        "recipes",
        "schedules",
    },
    "experiment": FACTS
    | {
        "__init__",
        "attacks",
        "bounds",
        "config",
        "curriculum",
        "curriculum_rules",
        "envs",
        "evaluation",
        "learners",
        "policies",
        "recipes",
    }
    | {"device", "runs", "stats"},
    "reports": FACTS
    | {"__init__", "attacks", "config", "curriculum_rules", "envs", "evaluation", "experiment", "learners", "policies"}
    | {"device", "recipes", "result", "runs", "stats", "zoo"},
    "api": FACTS
    | {"attacks", "bounds", "config", "envs", "evaluation", "experiment", "learners", "policies", "recipes", "reports"}
    | {"result", "runs", "zoo"},
    "cli": FACTS
    | {"__init__", "config", "recipes", "envs", "policies", "attacks", "evaluation", "runs", "stats"}
    | {"api", "experiment", "reports", "zoo"},
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "bcl" else [node.module or ""]
            )
        rooms |= {[*name.split("."), "__init__"][1] for name in names if name.split(".")[0] == "bcl"}
    return rooms - {room(path)}


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    assert room(path) in ALLOWED, f"add '{room(path)}' to the table"
    assert imported_rooms(path) <= ALLOWED[room(path)]


def test_no_type_name_is_defined_twice() -> None:
    trees = [ast.parse(path.read_text()) for path in modules()]
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assigned = [
        target for tree in trees for node in tree.body if isinstance(node, ast.Assign) for target in node.targets
    ]
    aliases = [target.id for target in assigned if isinstance(target, ast.Name) and re.match("[A-Z].*[a-z]", target.id)]
    names.update(aliases)
    assert len(names) > 150
    assert [name for name, times in names.items() if times > 1] == []
