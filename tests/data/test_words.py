"""Words that name no class."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partgcd.data.words import (
    means_date,
    means_labelled,
    means_no_label,
    means_part,
    nearly_unlabelled,
    says_unlabelled,
)


@pytest.mark.parametrize(
    "word",
    [
        "unlabelled", "Unlabeled", "_unlabelled", "UN-LABELLED", " not labelled ", "no label", "No_Label", "unknown",
        "Unknown photos", "unsorted", "to sort", "TO-SORT", "to be labelled", "unclassified", "none", "None", "NaN",
        "null", "N/A", "NA", "<NA>", "#N/A", "todo", "?", "???", "-", "--", "unlabelled_images", "unlabeled data",
        "ｕｎｋｎｏｗｎ", "un\u2010known", "unknown\u200b", "unbekannt", "non-classé", "non classe\u0301", "未分类",
    ],
)  # fmt: skip
def test_these_say_that_there_is_no_label(word: str) -> None:
    assert means_no_label(word)


@pytest.mark.parametrize(
    "word",
    ["cat", "other", "misc", "background", "unknown 1", "unknown bird", "nobody", "Nana", "Nathan", "0", "-1", "x?",
     "labelled", "todos", "anone", "new", "sorted"],
)  # fmt: skip
def test_these_may_be_classes(word: str) -> None:
    assert not means_no_label(word)


@given(
    st.sampled_from(["unknown", "no label", "n/a", "nonclassé"]),
    st.integers(0, 3),
    st.sampled_from(["", " ", "_", "-"]),
)
def test_case_gaps_and_unicode_form_say_nothing(word: str, form: int, gap: str) -> None:
    forms = ("NFC", "NFD", "NFKC", "NFKD")
    written = unicodedata.normalize(forms[form], gap + gap.join(word.upper()) + gap)
    assert means_no_label(written)


def test_parts_labelled_dates_and_near_misses() -> None:
    assert all(
        map(
            means_part, ["train", "Test", "VAL", "valid", "train2017", "test_set", "training-data", "holdout"]
        )
    )
    assert not any(map(means_part, ["trainer", "tests of time", "train station", "contest", "steam train"]))
    assert all(map(means_labelled, ["labelled", "Labeled", "_labelled", "labelled images"]))
    assert not any(map(means_labelled, ["unlabelled", "labels", "label"]))
    assert all(map(means_date, ["2020", "2021-03-05", "2021 3", "20210305", "100CANON", "101MSDCF"]))
    assert not any(map(means_date, ["0", "007", "1", "cat", "18th", "3021"]))
    assert (
        nearly_unlabelled("unlabled")
        and nearly_unlabelled("unlabelled old")
        and not nearly_unlabelled("unit")
    )
    assert says_unlabelled("_Unlabeled") and not says_unlabelled("unknown")
