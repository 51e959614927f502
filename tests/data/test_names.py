from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partgcd.data.names import clean_label, first_few, printable, storable


@pytest.mark.parametrize(
    "name, shown",
    [("Größe 猫", "Größe 猫"), ("a\nb\t\x1b[31m", "a\\nb\\t\\x1b[31m"), (os.fsdecode(b"\xff"), "\\udcff")],
)
def test_names_are_shown_on_one_harmless_line(name: str, shown: str) -> None:
    assert printable(name) == shown


@given(st.text(st.characters()))
def test_every_name_can_be_shown_and_stored(name: str) -> None:
    assert printable(name).isprintable()
    assert storable(name).encode("utf-8").decode("utf-8") == storable(name)
    assert clean_label(clean_label(name)) == clean_label(name)


def test_long_lists_say_how_much_they_leave_out() -> None:
    assert first_few(["a", "b"]) == "a, b"
    assert first_few(["a", "b", "c", "d\n", "e"]) == "a, b, c and 2 more"
