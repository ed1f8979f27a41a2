"""No function has more than 60 lines of code; its docstring, which may be the help of a command, does not count."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST = 60
Function = ast.FunctionDef | ast.AsyncFunctionDef


def lines_of_code(function: Function) -> int:
    assert function.end_lineno
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is None:
        return lines
    docstring = function.body[0]
    assert docstring.end_lineno
    return lines - (docstring.end_lineno - docstring.lineno + 1)


def test_lines_are_counted_without_the_docstring() -> None:
    [function] = ast.parse('def f(\n    x,\n):\n    """What it gives.\n\n    And why.\n    """\n    return x\n').body
    assert isinstance(function, Function)
    assert lines_of_code(function) == 4


@pytest.mark.parametrize("folder", ["bcl", "benchmarks", "examples"])
def test_no_function_is_too_long(folder: str) -> None:
    too_long = {
        f"{path.relative_to(ROOT)}: {node.name}": lines_of_code(node)
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, Function) and lines_of_code(node) > MOST
    }
    assert too_long == {}
