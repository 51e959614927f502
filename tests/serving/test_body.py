"""Bodies: what all requests, and those of one client, may hold; and fields that belong elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from partgcd.serving.body import Buffered, Held
from partgcd.serving.problems import Problem

ClientOf = Callable[..., TestClient]


def test_one_client_can_not_take_the_whole_buffer() -> None:
    account = Buffered(400, 50)
    first = Held(account, "10.0.0.1")
    first.take(100)
    with pytest.raises(Problem) as caught:
        Held(account, "10.0.0.1").take(1)
    assert caught.value.status == 429 and caught.value.limit == 100 and "your address" in caught.value.detail
    assert "Retry-After" in caught.value.headers
    others = [Held(account, f"10.0.0.{number}") for number in (2, 3, 4)]
    for each in others:
        each.take(100)
    with pytest.raises(Problem) as caught:
        Held(account, "10.0.0.5").take(1)
    assert caught.value.limit == 400
    first.close()
    Held(account, "10.0.0.5").take(1)


def test_one_body_always_fits() -> None:
    Held(Buffered(100, 90), "a").take(90)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), max_size=30))
def test_what_is_given_back_is_what_was_taken(steps: list[tuple[str, int]]) -> None:
    account = Buffered(200, 10)
    held: list[Held] = []
    for peer, count in steps:
        one = Held(account, peer)
        try:
            one.take(count)
        except Problem:
            count = 0
        assert account.held <= 200 and all(value <= 50 for value in account._of.values())
        held.append(one)
        if len(held) > 4:
            held.pop(0).close()
    for each in held:
        each.close()
    assert account.held == 0 and account._of == {}


@pytest.mark.parametrize("name", ["top_k", "explain"])
def test_a_field_that_belongs_into_the_query_is_told_so(
    client: TestClient, photos: dict[str, bytes], name: str
) -> None:
    response = client.post("/v1/classify", files=[("image", photos["red"])], data={name: "3"})
    assert response.status_code == 422
    told = response.json()
    assert f"'{name}'" in told["detail"] and f"/v1/classify?{name}=" in told["fix"] and "query" in told["fix"]


@pytest.mark.parametrize("name", ["file", "images", "Image", "photo", ""])
def test_a_field_of_another_name_is_told_the_right_one(
    client: TestClient, photos: dict[str, bytes], name: str
) -> None:
    response = client.post("/v1/classify", files=[(name, ("a.png", photos["red"]))])
    assert response.status_code == 422 and "'image'" in response.json()["fix"]
