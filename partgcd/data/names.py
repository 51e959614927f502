"""How file and class names are read and shown: they may hold anything a file system allows."""

from __future__ import annotations

import unicodedata


def clean_label(name: str) -> str:
    """The class a folder or a manifest cell names: composed Unicode (NFC), no white space around it.

    Archives made on some systems hold decomposed accents: without this, one class would become two.
    """
    return unicodedata.normalize("NFC", name).strip()


def printable(name: str) -> str:
    """``name`` on one line and safe for a terminal: control characters and lone surrogates are escaped."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in name
    )


def storable(name: str) -> str:
    """``name`` as text that every format here can hold: bytes that are not UTF-8 are escaped."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def first_few(names: list[str], most: int = 3) -> str:
    """The first ``most`` names, printable, with the number of those left out."""
    shown = ", ".join(printable(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
