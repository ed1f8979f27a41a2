"""What people call an attack. Files and APIs keep its repr, which says everything about it."""

import ast

_NAMES = {
    "RIFGSM": "RI-FGSM",
    "MultiT": "Multi-T",
    "WorstAction": "Worst action",
    "UniformNoise": "Noise",
    "CornerNoise": "Corner noise",
}


def attack_label(attack: str) -> str:
    """A short name for an attack's repr: `PGD-30`, `PGD-50 x5 margin`, `Multi-T 1000`."""
    kind, given = _parsed(attack)
    name = _NAMES.get(kind, kind)
    effort = given.get("steps")
    words = [f"{name}-{effort}" if effort else name]
    words += [f"{given[key]}" for key in ("starts", "queries") if key in given]
    words += [f"x{given['restarts']}"] if given.get("restarts", "1") != "1" else []
    objective = given.get("objective", "CrossEntropy()").removesuffix("()")
    words += [{"KL": "KL", "MinBest": "best value"}.get(objective, objective.lower())] * (objective != "CrossEntropy")
    return " ".join(words)


def kind_of(attack: str) -> str:
    """The class of an attack's repr."""
    return _parsed(attack)[0]


def _parsed(attack: str) -> tuple[str, dict[str, str]]:
    """The kind of an attack, and its settings as text; anything that is no call is its own kind."""
    try:
        call = ast.parse(attack, mode="eval").body
    except SyntaxError:
        return attack, {}
    if not isinstance(call, ast.Call):
        return attack, {}
    return ast.unparse(call.func), {word.arg or "": ast.unparse(word.value) for word in call.keywords}
