"""The kinds of number a setting can be, and how budgets are read and written.

Budgets (eps) are in observation units: images live in [0, 1], so people write `3/255`.
"""

from fractions import Fraction
from typing import Annotated

from bcl.errors import ConfigError

Eps = Annotated[float, "budget"]
Count = Annotated[int, "at least 1"]
Natural = Annotated[int, "at least 0"]
Magnitude = Annotated[float, "at least 0"]
Share = Annotated[float, "between 0 and 1"]
Positive = Annotated[float, "above 0"]


def fits(value: float, condition: str) -> bool:
    """Whether a number keeps the condition that its annotation states."""
    return {
        "at least 1": value >= 1,
        "at least 0": value >= 0,
        "between 0 and 1": 0 <= value <= 1,
        "above 0": value > 0,
    }[condition]


def counted(number: float, what: str, several: str = "") -> str:
    """`1 episode`, `2,000 episodes`, `0.5 hours`; `several` is the plural where it takes more than an s."""
    return f"{number:,.10g} {what if number == 1 else several or what + 's'}"


def parse_eps(value: object, where: str = "eps") -> float:
    """A budget from `3/255` or a decimal; a bare integer is refused, because people mean gray levels by it."""
    text = str(value).strip()
    try:
        eps = float(Fraction(text)) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise ConfigError(f"{where} = '{text}' is not a budget", "write it like 3/255 or 0.03") from None
    if text.lstrip("+").isdecimal() and eps != 0:
        raise ConfigError(
            f"{where} = {text} is ambiguous", f"write {text}/255 for gray levels, or a decimal such as 0.03"
        )
    if not 0 <= eps <= 1:
        raise ConfigError(f"{where} = {text} is outside [0, 1]", "write it like 3/255 or 0.03")
    return eps


def format_eps(eps: float) -> str:
    """A short decimal such as `0.2`, else `3/255` where that is what it is, else the shortest exact decimal."""
    levels, decimal = round(eps * 255), repr(float(eps))
    return f"{levels}/255" if len(decimal) > 6 and eps == levels / 255 else decimal
