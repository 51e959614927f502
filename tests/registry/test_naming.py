"""Which names are alike, and what a word means."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from partgcd.config.errors import UserError
from partgcd.continual.align import _named
from partgcd.continual.annotations import read_annotations
from partgcd.export.manifest import ClassEntry
from partgcd.registry.naming import ClassIds, name_key, resolve, unique_name
from partgcd.registry.roster import ClassRow


def row(name: str, id: str, status: str = "active", into: str | None = None) -> ClassRow:
    split = ("c-8", "c-9") if status == "split" else None
    return ClassRow(id, name, "old", status, into, split, None, 1, 1, 0, "")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Pear", "pear"), ("Pear", "PEAR "), ("Big Pear", "big_pear"), ("Big Pear", "Big-Pear"),
        ("BigPear", "big pear"),
        ("K\u00e4fer", "Ka\u0308fer"), ("\ufb01sh", "fish"), ("stra\u00dfe", "STRASSE"), ("\uff50ear", "pear"),
        ("pe\u200bar", "pear"), ("pear\u00ad", "pear"), ("\u202epear", "pear"), ("\u00c5", "\u212b"),
        ("a\u2013b", "a-b"),
        ("new-01", "New 01"), ("a\u3000b", "a b"), ("\u2764", "\u2764\ufe0f"),
    ],
)  # fmt: skip
def test_names_that_are_alike(one: str, other: str) -> None:
    assert name_key(one) == name_key(other) != ""


@pytest.mark.parametrize(
    ("one", "other"),
    [("1 1", "11"), ("-1", "1"), ("1-2", "12"), ("a+", "a"), ("C#", "C"), ("e", "\u00e9"), ("1.0", "10"), ("x", "y")],
)  # fmt: skip
def test_names_that_are_not(one: str, other: str) -> None:
    assert name_key(one) != name_key(other)


@given(st.text(max_size=12))
def test_a_key_is_its_own_key_and_the_form_of_its_unicode_does_not_matter(name: str) -> None:
    key = name_key(name)
    assert name_key(key) == key
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert name_key(unicodedata.normalize(form, name)) == key  # type: ignore[arg-type]
    assert name_key(f" {name}_") == key


@given(st.text(min_size=1, max_size=220), st.integers(0, 4))
def test_a_unique_name_is_one(name: str, others: int) -> None:
    taken: set[str] = set()
    for _ in range(others + 1):
        made = unique_name(name, taken)
        assert name_key(made) not in taken and 1 <= len(made) <= 200
        taken.add(name_key(made))


def test_an_id_goes_before_a_name_and_a_name_before_one_like_it() -> None:
    rows = [row("Pear", "c-1"), row("pear", "c-2"), row("c-1", "c-3"), row("Plum", "c-4"),
            row("Plum", "c-5", "merged", "c-4")]  # fmt: skip
    for word, found in {"c-1": "c-1", "Pear": "c-1", "pear": "c-2", "PLUM": "c-4", "C-4": "c-4"}.items():
        got = resolve(rows, word)
        assert got is not None and got.id == found
    with pytest.raises(UserError, match=r"2 classes are named like 'PEAR': give an id \(c-1, c-2\)"):
        resolve(rows, "PEAR")
    assert resolve(rows, "kiwi") is None


def test_words_of_retired_classes_lead_to_what_answers_for_them() -> None:
    rows = [row("a", "c-1"), row("b", "c-2", "merged", "c-1"), row("b", "c-3", "merged", "c-1"),
            row("d", "c-4", "split"), row("e", "c-5", "dormant"), row("f", "c-6", "merged", "c-5")]  # fmt: skip
    ids = ClassIds(rows)
    assert ids["b"] == ids["c-3"] == ids["B"] == "c-1"
    assert "e" not in ids and "f" not in ids and "nobody" not in ids
    assert list(ids) == ["c-1"] and len(ids) == 1
    with pytest.raises(UserError, match="was split into c-8 and c-9"):
        ids["d"]


def test_an_aligned_bundle_takes_the_champions_names_and_no_others() -> None:
    rows = [row("Pear", "c-1"), replace(row("new-01", "c-2"), kind="discovered"), row("Kiwi", "c-3", "dormant"),
            row("gone", "c-4", "merged", "c-1")]  # fmt: skip

    def entry(index: int, id: str, name: str, kind: str = "old") -> ClassEntry:
        return ClassEntry.model_validate(
            {"index": index, "id": id, "name": name, "kind": kind, "labelled": 1, "assigned": 1}
        )

    classes = [entry(0, "c-1", "PEAR"), entry(1, "c-2", "Plum"), entry(2, "c-9", "kiwi"), entry(3, "c-8", "gone"),
               entry(4, "c-7", "new-01", "discovered")]  # fmt: skip
    named = _named(classes, rows)
    assert [each.name for each in named] == ["Pear", "Plum", "kiwi 2", "gone", "new-01 (2)"]
    assert [each.id for each in named] == [each.id for each in classes]


def test_folders_that_mean_two_classes_or_one_twice_are_refused(tmp_path: Path) -> None:
    for name in ("Pear", "Kiwi", "ki-wi"):
        for number in range(4):
            (tmp_path / "told" / name).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), (number, 0, 0)).save(tmp_path / "told" / name / f"{number}.png")
    twice = ClassIds([row("Pear", "c-1"), row("pear ", "c-2"), row("pear", "c-5"), row("pear", "c-6")])
    for words in (
        (tmp_path / "told", None, False),
        (None, tmp_path / "told", False),
        (tmp_path / "told", None, True),
    ):
        with pytest.raises(UserError, match=r"give an id \(c-5, c-6\)|name one class") as caught:
            read_annotations(*words, ClassIds([row("PEAR", "c-5"), row("pear", "c-6")]))
        assert caught.value.code == 2
    assert len(read_annotations(tmp_path / "told", None, False, twice).entries) == 4, "one is called just so"
    with pytest.raises(UserError, match="'Kiwi' and 'ki-wi' name one class"):
        read_annotations(tmp_path / "told", None, True, twice)
    (tmp_path / "told" / "ki-wi").rename(tmp_path / "told" / "c-0123456789")
    with pytest.raises(UserError, match="looks like a class id"):
        read_annotations(tmp_path / "told", None, True, twice)
