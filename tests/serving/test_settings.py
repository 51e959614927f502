from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from partgcd.serving.settings import ServeSettings


@pytest.mark.parametrize(
    "wrong",
    [
        {"api_key": "short"}, {"api_key": "has a line\nbreak"}, {"api_key": " padded to be long "},
        {"api_key": "schlüssel-groß"}, {"limits": {"max_files": 65}}, {"limits": {"max_body_mb": 600}},
        {"limits": {"max_queue": 0}}, {"limits": {"nothing": 1}}, {"collect": {"folder": "x", "what": "some"}},
        {"collect": {"folder": "x", "below": 2}}, {"poll_s": 0}, {"workers": -1}, {"unknown": 1},
    ],
)  # fmt: skip
def test_what_can_not_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ServeSettings.model_validate({"source": "x", **wrong})


def test_the_key_is_never_shown() -> None:
    settings = ServeSettings.model_validate({"source": "x", "api_key": "correct horse"})
    for shown in (repr(settings), str(settings), settings.model_dump_json()):
        assert "correct" not in shown


def test_only_this_machine_is_answered_unless_told() -> None:
    settings = ServeSettings(source=Path("x"))
    assert settings.allow_hosts == ("127.0.0.1", "localhost", "::1")
    assert settings.api_key is None and settings.collect is None
