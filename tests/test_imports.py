"""Imports point one way; this table is the architecture."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "bcl"
FACTS = {"errors", "quantities", "layers", "games"}
ALLOWED = {
    "__init__": {"api", "policies", "envs", "errors"},
    "__main__": {"cli"},
    "errors": set(),
    "layers": set(),
    "processes": set(),
    "quantities": {"errors"},
    "games": {"errors", "quantities"},
    "recipes": {"errors"},
    "settings": {"errors", "quantities", "games"},
    "schema": FACTS,
    "config": FACTS | {"recipes", "schema", "settings"},
    "presets": set(),
    "zoo": {"errors"},
    "attacks": {"errors", "quantities"},
    "bounds": {"errors", "layers"},
    "envs": FACTS | {"processes"},
    "stats": set(),
    "threads": set(),
    "seeds": set(),
    "schedules": set(),
    "graphs": set(),
    "losses": {"errors"},
    "curriculum": {"errors", "quantities"},
    "pacing": {"errors"},
    "runs": {"errors", "processes"},
    "policies": FACTS | {"runs", "zoo", "__init__"},
    "evaluation": FACTS | {"__init__", "attacks", "bounds", "graphs", "stats", "envs", "policies", "runs", "threads"},
    "learners": FACTS
    | {
        "attacks",
        "bounds",
        "config",
        "envs",
        "graphs",
        "losses",
        "pacing",
        "policies",
        "recipes",
        "schedules",
        "seeds",
    },
    "experiment": FACTS
    | {"__init__", "attacks", "bounds", "config", "curriculum", "envs", "evaluation", "learners", "policies", "recipes"}
    | {"runs", "pacing", "seeds", "settings", "stats", "threads"},
    "reports": FACTS
    | {"__init__", "attacks", "config", "curriculum", "envs", "evaluation", "experiment", "learners", "policies"}
    | {"recipes", "runs", "settings", "stats", "threads", "zoo"},
    "api": FACTS
    | {"attacks", "bounds", "config", "envs", "evaluation", "experiment", "learners", "policies", "recipes", "reports"}
    | {"runs", "settings", "zoo"},
    "cli": FACTS
    | {"__init__", "config", "settings", "recipes", "envs", "policies", "attacks", "evaluation", "runs", "stats"}
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
