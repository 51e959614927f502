"""Foreign text on its way to terminals and spreadsheets."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partgcd.data.cells import json_line, path_cell, read_path_cell, shown, text_cell

ORDERS = ["\x1b[31m", "\x9b31m", "\x07", "\x08", "\u202egnp.exe", "\u2066", "\x7f", "\u200f"]
FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1",
            " =1", '"=1', "\uff1d1", "\uff20x", "=", "\n=1"]  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
def test_orders_reach_no_terminal_and_no_cell(order: str) -> None:
    for made in (
        shown(f"a{order}b"),
        text_cell(f"a{order}b"),
        path_cell(f"a{order}b"),
        json_line(f"a{order}b"),
    ):
        assert isinstance(made, str) and order[0] not in made
    assert read_path_cell(path_cell(f"a{order}b.png")) == f"a{order}b.png"


@pytest.mark.parametrize("formula", FORMULAS)
def test_formulas_become_text_and_paths_stay_paths(formula: str, tmp_path: Path) -> None:
    assert text_cell(formula) == "'" + formula
    cell = path_cell(formula)
    assert cell == "./" + formula and read_path_cell(cell) == formula
    name = formula.replace("/", "")
    (tmp_path / name).write_text("x")
    assert (tmp_path / path_cell(name)).read_text() == "x"


@pytest.mark.parametrize("value", ["-1", "+1.5", "-.5e-3", "1e9", -2, 0.5, None,
                                   True, "a-b", "Käfer", "a=b", "1 = 2", "你好"])  # fmt: skip
def test_numbers_and_plain_words_stay(value: object) -> None:
    assert text_cell(value) == value
    assert shown(f"{value}\n\t") == f"{value}\n\t"


def test_a_path_keeps_what_joins_letters(tmp_path: Path) -> None:
    for name in ("\U0001f469\u200d\U0001f33e.png", "Screenshot 9.41\u202fAM.png", "می\u200cروم.jpg"):
        assert path_cell(name) == name == shown(name)


@given(st.text())
def test_any_path_comes_back(path: str) -> None:
    if "\\" not in path and not any("\ud800" <= letter <= "\udfff" for letter in path) and path[:2] != "./":
        assert read_path_cell(path_cell(path)) == path


@given(
    st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)
)
def test_json_means_the_same(value: object) -> None:
    line = json_line(value)
    assert json.loads(line) == value
    assert shown(line) == line and os.linesep not in line
