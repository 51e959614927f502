"""The ways in which programs write one path: blanks, quotes, file:// addresses, backslashes, drives, %20."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

BLANKS = " \t\r\n\v\f\xa0\u3000\ufeff\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u2066\u2067\u2068\u2069"
"""White space, byte order marks and marks of direction, as editors and file managers put around a path."""

_QUOTES = {'"': '"', "'": "'", "`": "`", "\u201c": "\u201d", "\u201e": "\u201c", "\u2018": "\u2019", "<": ">"}
_DRIVE = re.compile(r"([A-Za-z]):(/?)")
_FILE = re.compile(r"file:(//localhost(?=/)|//(?=/|[A-Za-z]:)|(?=/))", re.IGNORECASE)
_ADDRESS = re.compile(r"(?!file:)[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_ESCAPED = re.compile(r"%[0-9A-Fa-f]{2}")


def tidy(path: str) -> str:
    """Without doubled slashes and single dots. '..' stays: resolving it by name alone is wrong below a link."""
    parts = "/".join(part for part in path.split("/") if part not in ("", "."))
    return f"/{parts}" if path.startswith("/") else parts or "."


def spellings(written: str) -> list[tuple[str, str]]:
    """What ``written`` may mean in posix form, each with what was taken from it; the first is as it stands."""
    found = [(tidy(written), "")]
    whys: list[str] = []
    text = written

    def keep(other: str, why: str) -> str:
        if other != text and other:
            whys.append(why)
            found.append((tidy(other), " and ".join(whys)))
            return other
        return text

    text = keep(_stripped(text), "white space or quotes around it")
    text = keep(_FILE.sub("", text, count=1), "a file:// address")
    if found[-1][1].endswith("address"):
        text = keep(unquote(text, errors="surrogateescape"), "%20 and its like")
        text = keep(re.sub(r"^/(?=[A-Za-z]:)", "", text), "a drive")
    text = keep(text.replace("\\", "/"), "backslashes")
    if drive := _DRIVE.match(text):
        # Where Linux runs inside Windows the drive is found there; else only what follows can be.
        text = keep(f"/mnt/{drive[1].lower()}/{text[drive.end() :]}", "a drive")
    if text.startswith("~/"):
        text = keep(str(Path(text).expanduser()), "a home folder")
    if _ESCAPED.search(text):
        keep(unquote(text, errors="surrogateescape"), "%20 and its like")
    return found


def is_address(written: str) -> bool:
    """Whether it names a place on the web, which nothing here opens."""
    return _ADDRESS.match(written.strip(BLANKS)) is not None


def _stripped(text: str) -> str:
    text = text.strip(BLANKS)
    while len(text) > 1 and _QUOTES.get(text[0]) == text[-1]:
        text = text[1:-1].strip(BLANKS)
    return text
