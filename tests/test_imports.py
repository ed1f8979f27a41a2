"""Imports point one way, which the table below says; a class name means one class; tests lie where their module does."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "bcl"
# What each room imports, all of it; docs/developing.md says what they hold.
IMPORTS = {
    "errors": "",
    "small_convs": "",
    "layers": "small_convs",
    "dqn_kernels": "layers small_convs",
    "settings": "errors",
    "games": "errors settings",
    "processes": "",
    "device": "errors",
    "recipes": "errors settings",
    "config": "errors games recipes settings",
    "result": "errors",
    "losses": "",
    "schedules": "",
    "stats": "",
    "curriculum_rules": "config errors",
    "curriculum": "curriculum_rules errors",
    "attacks": "errors settings",
    "bounds": "dqn_kernels errors layers",
    "envs": "device errors games processes",
    "runs": "config curriculum_rules errors processes recipes settings",
    "zoo": "errors runs",
    "policies": "__init__ dqn_kernels envs errors games layers runs settings small_convs zoo",
    "frozen": "layers small_convs",
    "evaluation": "__init__ attacks bounds device envs errors frozen games policies result runs settings small_convs stats",
    "learners": "attacks bounds config device envs errors losses policies recipes schedules small_convs",
    "experiment": "__init__ attacks bounds config curriculum curriculum_rules device envs errors evaluation games learners "
    "policies recipes runs settings stats",
    "reports": "__init__ attacks config curriculum_rules device envs errors evaluation experiment games policies result runs "
    "settings stats zoo",
    "api": "attacks bounds config device envs errors evaluation experiment games policies processes recipes reports result "
    "runs settings zoo",
    "cli": "__init__ api config errors evaluation policies processes recipes reports result runs settings zoo",
    "__init__": "api errors evaluation policies result",
    "__main__": "cli",
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
    assert room(path) in IMPORTS, f"add '{room(path)}' to the table"
    assert imported_rooms(path) <= {*IMPORTS[room(path)].split()}


@pytest.mark.parametrize("name", IMPORTS)
def test_the_table_has_no_import_that_nothing_makes(name: str) -> None:
    made = set[str]().union(*(imported_rooms(path) for path in modules() if room(path) == name))
    assert {*IMPORTS[name].split()} == made


def test_rooms_import_from_rooms_above_them() -> None:
    """But `__init__`, for the version; of `cli` for the functions too."""
    above = {"__init__"}
    for name, imported in IMPORTS.items():
        assert {*imported.split()} <= above, name
        above.add(name)


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


# Of the repository, not of a module.
ABOUT_ALL = {"benchmarks", "docs", "examples", "frames", "imports", "lengths"}


def test_tests_are_called_after_a_module_of_their_room() -> None:
    """`test_MODULE.py` or `test_MODULE_topic.py`; after the folder where they are about all of it."""
    tests = Path(__file__).parent
    for path in sorted(tests.rglob("test_*.py")):
        room = path.parent.relative_to(tests)
        known = {module.stem for module in (PACKAGE / room).iterdir()} | ({room.name} if room.name else ABOUT_ALL)
        words = path.stem.removeprefix("test_").split("_")
        assert known & {"_".join(words[:count]) for count in range(1, len(words) + 1)}, path
