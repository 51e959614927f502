"""What classes are called: which names tell two of them apart, and which class a word means.

Two names are alike if they differ only in capitals, blanks, underscores, hyphens, invisible characters or the form of
their Unicode (UAX 15, NFKC). Living and dormant classes have no two names that are alike; a registry that holds some
all the same (an older program made it) opens, and whatever means both of them is refused with their ids.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from partgcd.config.errors import UserError
from partgcd.data.names import printable
from partgcd.registry.log import checked_name
from partgcd.registry.roster import ClassRow, list_classes
from partgcd.registry.versions import Registry

_LONGEST = 200
_ID = re.compile(r"c[0-9a-f]{10}")
_UNSEEN = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
)  # fillers that are letters or marks by category


class InvalidName(UserError):
    """No class can have the name."""


class NameTaken(UserError):
    """Another class has the name, or one like it."""


def name_key(name: str) -> str:
    """The same for names that are alike; empty where nothing of the name can be seen.

    '1-2' and '12' stay two names, and so do '-1' and '1'.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    letters: list[str] = []
    for letter in folded:
        kind = unicodedata.category(letter)
        if letter in _UNSEEN or kind == "Cf" or "VARIATION SELECTOR" in unicodedata.name(letter, ""):
            continue
        dash = kind == "Pd" or letter == "\u2212"
        letters.append(" " if letter == "_" or letter.isspace() else "-" if dash else letter)
    text = "".join(letters).strip()
    sign = "-" if re.match(r"-+ *\d", text) else ""
    joined = re.sub(r"[ -]+", lambda gap: " " if _between_digits(text, gap) else "", text)
    return unicodedata.normalize("NFC", sign + joined)  # what was left out may have stood before an accent


def _between_digits(text: str, gap: re.Match[str]) -> bool:
    """Whether a gap says something; elsewhere it is a matter of taste."""
    return text[max(gap.start() - 1, 0) : gap.start()].isdigit() and text[gap.end() : gap.end() + 1].isdigit()


def checked_class_name(name: str) -> str:
    """A name as people may give it, tidied.

    Raises:
        InvalidName: it is empty, too long, can't be shown, or looks like a class id.
    """
    try:
        cleaned = checked_name(name)
    except UserError as error:
        raise InvalidName(str(error)) from error
    if not name_key(cleaned):
        raise InvalidName(f"'{cleaned}' can't name a class: it needs a letter, a digit or a sign")
    if _ID.fullmatch(name_key(cleaned).replace(" ", "")):
        raise InvalidName(f"'{cleaned}' can't name a class: it looks like a class id")
    return cleaned


def refuse_taken(rows: Sequence[ClassRow], name: str, own: str | None = None) -> None:
    """See that no class but ``own`` has a name or an id like ``name``.

    Raises:
        NameTaken: another one has; it is named.
    """
    key = name_key(name)
    for row in rows:
        if row.id != own and name_key(row.id) == key:
            raise NameTaken(f"'{printable(name)}' is the id of another class: choose another name")
    for row in rows:
        if row.id != own and _lives(row) and name_key(row.name) == key:
            raise NameTaken(
                f"class {row.id} is called '{printable(row.name)}': choose another name than "
                f"'{printable(name)}' (capitals, blanks, underscores and hyphens don't tell names apart), or "
                "rename or merge that class"
            )


def unique_name(wanted: str, taken: Collection[str]) -> str:
    """``wanted``, or with a number behind it if a name like it is ``taken`` (keys of `name_key`)."""
    name, number = wanted[:_LONGEST], 1
    while name_key(name) in taken:
        number += 1
        name = f"{wanted[: _LONGEST - 12].rstrip()} {number}" if wanted[-1:] not in "0123456789" else (
            f"{wanted[: _LONGEST - 12]} ({number})"
        )  # fmt: skip
    return name


def resolve(rows: Sequence[ClassRow], word: str) -> ClassRow | None:
    """The class that ``word`` means: by id, by name, by a name like it, by the name of a class that is retired.

    Raises:
        UserError: it means several; their ids are named.
    """
    key = name_key(word)
    here = [row for row in rows if _lives(row)]
    retired = [row for row in rows if not _lives(row)]
    steps: list[tuple[Sequence[ClassRow], Callable[[ClassRow], bool]]] = [
        (rows, lambda row: row.id == word),
        (here, lambda row: row.name == word),
        (here, lambda row: key in (name_key(row.name), name_key(row.id))),
        (retired, lambda row: row.name == word),
        (retired, lambda row: key in (name_key(row.name), name_key(row.id))),
    ]
    for among, fits in steps:
        found = [row for row in among if fits(row)]
        if len(found) == 1 or (found and found[0].merged_into is not None
                               and len({row.merged_into for row in found}) == 1):  # fmt: skip
            return found[0]
        if found:
            same = "named" if all(row.name == word for row in found) else "named like"
            raise UserError(
                f"{len(found)} classes are {same} '{printable(word)}': give an id "
                f"({', '.join(row.id for row in found)}), or give one of them another name with "
                "partgcd classes rename"
            )
    return None


def find_class(registry: Registry, word: str) -> ClassRow:
    """The class that ``word`` means, living or not.

    Raises:
        UserError: none, or several.
    """
    found = resolve(list_classes(registry), word)
    if found is None:
        raise UserError(f"no class '{printable(word)}': partgcd classes list '{registry.path}' names them")
    return found


def living(row: ClassRow, answering: bool = False) -> ClassRow:
    """The class itself, if it is not retired; with ``answering``, if the champion knows it.

    Raises:
        UserError: it was merged or split; what it became is named.
    """
    if row.status == "merged":
        raise UserError(f"'{printable(row.name)}' was merged into {row.merged_into}: name that one")
    if row.status == "split":
        children = " and ".join(row.split_into or ())
        raise UserError(f"'{printable(row.name)}' was split into {children}: name one of them")
    if answering and row.status == "dormant":
        raise UserError(f"the champion does not know '{printable(row.name)}'", 1)
    return row


class ClassIds(Mapping[str, str]):
    """Ids of the classes that answer, by whatever word means one: `resolve`, and what was merged by its old words.

    Looking up a word that means several classes, or one that was split, raises UserError.
    """

    def __init__(self, rows: Sequence[ClassRow]) -> None:
        self._rows = rows
        self._active = {row.id for row in rows if row.status == "active"}
        self._known: dict[str, str | None] = {}

    def __getitem__(self, word: str) -> str:
        if word not in self._known:
            self._known[word] = self._find(word)
        found = self._known[word]
        if found is None:
            raise KeyError(word)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(row.id for row in self._rows if row.id in self._active)

    def __len__(self) -> int:
        return len(self._active)

    def _find(self, word: str) -> str | None:
        row = resolve(self._rows, word)
        if row is None or row.status == "dormant":
            return None
        if row.status == "split":
            living(row)
        found = row.merged_into or row.id
        return found if found in self._active else None


def ids_by_word(registry: Registry) -> ClassIds:
    """Class ids by id and by name; what was merged goes by its old name and id as well."""
    return ClassIds(list_classes(registry))


def _lives(row: ClassRow) -> bool:
    return row.status in ("active", "dormant")
