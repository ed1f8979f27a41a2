"""A checksum inside a JSON object: one whose bytes were damaged is not taken for another."""

import json
import zlib
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
CHECKSUM = "checksum"


def sealed(value: Mapping[str, Any]) -> Json:
    """The object with the checksum of its content; NaN and infinities become null."""
    # JSON has no NaN: other parsers refuse it.
    content: Json = json.loads(json.dumps(value), parse_constant=lambda _: None)
    content.pop(CHECKSUM, None)
    return content | {CHECKSUM: _checksum(content)}


def unsealed(value: Any) -> Json:
    """The content of what `sealed` gave; raises ValueError for anything else. Objects of version 0.1 have no checksum."""
    if not isinstance(value, dict):
        raise ValueError("it does not hold a JSON object")
    written = value.pop(CHECKSUM, None)
    if written not in (None, _checksum(value)):
        raise ValueError("its checksum is not that of its content")
    return value


def _checksum(content: Json) -> str:
    return f"{zlib.crc32(json.dumps(content).encode()):08x}"
