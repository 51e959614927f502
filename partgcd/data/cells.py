"""Foreign text in what people open: no escape code reaches a terminal, no formula a spreadsheet.

File names and class names may hold anything. A terminal obeys what begins with ESC or is a control character of its
upper range, and characters that turn the direction of writing make a name read as another. A spreadsheet computes a
cell that begins with one of ``= + - @`` (OWASP, CSV injection).
"""

from __future__ import annotations

import json
import re
from typing import Any

_ORDERS = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_UNSEEN = "\u00ad\u200b-\u200d\u2060-\u2065\u206a-\u206f\ufeff\U000e0000-\U000e007f"
_ORDER = re.compile(f"[{_ORDERS}\ud800-\udfff]")
_ORDER_OR_UNSEEN = re.compile(f"[{_ORDERS}{_UNSEEN}\ud800-\udfff]")
_ESCAPED = re.compile(r"\\x(0[0-8bcef]|1[0-9a-f]|7f|[89][0-9a-f])|\\u(061c|200[ef]|202[a-e]|206[6-9])")
# Also in the full width that some spreadsheets take for the same, and after what they skip.
_FORMULA = re.compile("[\\s\"'`\u200b\ufeff]*[=+\\-@\uff1d\uff0b\uff0d\uff20\u2212]|[\t\r\n]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def shown(text: str) -> str:
    """``text`` without orders to a terminal: they are spelled out, as ``\\x1b``; line ends and tabs stay."""
    return _ORDER.sub(_spelled, text)


def text_cell(value: object) -> object:
    """A name, note or reason as a CSV cell: orders and unseen characters spelled out, a formula behind an apostrophe.

    What is no text, or a number, stays what it is.
    """
    if not isinstance(value, str):
        return value
    text = _ORDER_OR_UNSEEN.sub(_spelled, value)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def path_cell(path: str) -> str:
    """A path as a CSV cell, still a path of the same file: one like a formula gets ``./`` before it."""
    text = _ORDER.sub(_spelled, path)
    return f"./{text}" if _FORMULA.match(text) else text


def read_path_cell(cell: str) -> str:
    """The path that `path_cell` wrote; a name that holds such spelled-out orders itself is taken for one of theirs."""
    if cell.startswith("./") and _FORMULA.match(cell[2:]):
        cell = cell[2:]
    return _ESCAPED.sub(lambda found: chr(int(found[1] or found[2], 16)), cell)


def json_line(value: Any, indent: int | None = None) -> str:
    """JSON that is safe in a terminal and means the same: orders and unseen characters are JSON escapes."""
    return _ORDER_OR_UNSEEN.sub(_as_json, json.dumps(value, ensure_ascii=False, indent=indent))


def _spelled(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def _as_json(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]
