from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partgcd.config.errors import UserError
from partgcd.config.load import differing_keys, flatten, load_settings, to_yaml
from partgcd.config.presets import PRESETS


def test_later_sources_win(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text("train: {epochs: 7, lr: 0.5}\n")
    settings = load_settings(
        "quick", file, ["train.lr=0.25"], {"train.batch_size": 16, "train.momentum": None}
    )
    assert (settings.train.epochs, settings.train.lr, settings.train.batch_size) == (7, 0.25, 16)
    assert settings.data.image_size == 154
    assert settings.train.momentum == 0.9


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_valid_and_survives_yaml(tmp_path, preset):
    settings = load_settings(preset)
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(settings))
    assert load_settings(file=file) == settings


def test_all_errors_come_at_once():
    with pytest.raises(UserError) as caught:
        load_settings(assignments=["train.epochs=0", "parts.cuont=3", "data.image_size=banana"])
    text = str(caught.value)
    assert "train.epochs" in text and "did you mean 'parts.count'" in text and "data.image_size" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("parts.count=1", "from 2 to 32"),
        ("discovery.classes=1", "at least 2"),
        ("parts.count_min=9", "above parts.count_max"),
        ("nonsense", "a.b=value"),
        ("train=3", "train"),
    ],
)
def test_wrong_values_say_what_is_right(assignment, says):
    with pytest.raises(UserError, match=says):
        load_settings(assignments=[assignment])


def test_unknown_preset_lists_the_known():
    with pytest.raises(UserError, match="paper"):
        load_settings("papers")


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "\x00"])
def test_bad_files_are_one_line(tmp_path, text):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        load_settings(file=file)
    assert "\n" not in str(caught.value)


def test_differing_keys_are_named():
    one, other = load_settings(), load_settings(assignments=["train.lr=0.2", "seed=3"])
    assert sorted(differing_keys(one, other)) == ["seed: 0 != 3", "train.lr: 0.03 != 0.2"]


@given(st.sampled_from(sorted(flatten(load_settings()))), st.text(max_size=12))
def test_any_text_for_any_key_is_accepted_or_one_clear_line(key, value):
    try:
        load_settings(assignments=[f"{key}={value}"])
    except UserError as error:
        assert "\n" not in str(error).strip() or "\n" in value
