"""What version 0.1 stored, or what lacks a fact of today, as it is stored today."""

import ast
from typing import Any

from bcl.runs.store import Json


def current_row(row: Json) -> Json:
    """A score or a certificate. Version 0.1 named the agent and its device as `policy`, such as `f00d on cpu`."""
    added: Json = {
        "meaning": 1,
        "asked": "fast" if row.get("precision") == "half" else "full",
        "num_envs": 0,
        "starts": "varied" if row.get("prefixes") else "game",
    }
    if "returns" in row:
        added |= {"courses": None, "prefixes": (), "instead": ""}
    else:
        added["protocol"] = "fixed"
    if "attack" in row and "adversary" not in row:
        added["adversary"] = attack_of(row["attack"])
    agent, _, device = str(row.get("policy", "")).partition(" on ")
    return added | row | ({} if "agent" in row else {"agent": agent, "device": device})


def current_flag(stored: Any) -> Json:
    """The fields of a flag, which were one text: `name: message`."""
    if isinstance(stored, str):
        name, _, message = stored.partition(": ")
        return {"name": name, "message": message}
    if not isinstance(stored, dict) or stored.keys() != {"name", "message"}:
        raise TypeError(f"{stored!r:.60} is not a flag")
    return stored


def attack_of(text: Any) -> Json | None:
    """An attack as data, from the repr that version 0.1 stored in its place; no data where it is no text."""
    if text == "none":
        return None
    if not isinstance(text, str):
        return {}
    try:
        return _parsed(ast.parse(text, mode="eval").body)
    # The last two: nested too deeply to parse.
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return {"kind": text}


def _parsed(node: ast.expr) -> Json:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not the repr of a dataclass")
    fields = {
        str(word.arg): _parsed(word.value) if isinstance(word.value, ast.Call) else ast.literal_eval(word.value)
        for word in node.keywords
    }
    hash(tuple(value for value in fields.values() if not isinstance(value, dict)))  # a list is no setting of an attack
    return {"kind": ast.unparse(node.func), **fields}
