from __future__ import annotations

import sys

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from partgcd.cluster.candidates import (
    Mode,
    Scores,
    Wanted,
    arg_top,
    candidates_per_class,
    retrieve,
    select_candidates,
)
from partgcd.cluster.prototypes import calibrated_prototypes
from partgcd.config.errors import UserError


def unit(rows: int, dim: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(rows, dim, generator=generator), dim=1)


def test_new_classes_get_as_many_candidates_as_old_ones_have_labels() -> None:
    labels = torch.tensor([0] * 7 + [1] * 3 + [-1] * 20)
    assert candidates_per_class(labels, 2, 5, 1.0) == 5
    assert candidates_per_class(labels, 2, 5, 0.5) == 3  # 2.5 rounds up
    assert candidates_per_class(labels, 2, 5, 0.01) == 1


def test_without_labels_every_class_is_assumed_an_equal_share() -> None:
    assert candidates_per_class(torch.full((30,), -1), 0, 4, 2.0) == 8


@given(
    values=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    count=st.integers(0, 12),
)
@settings(max_examples=80, deadline=None)
def test_arg_top_breaks_ties_by_the_smaller_row(values: list[int], count: int) -> None:
    scores = torch.tensor([values, values[::-1]], dtype=torch.float32).T
    for column, found in zip((values, values[::-1]), arg_top(scores, count), strict=True):
        assert found.tolist() == sorted(range(len(column)), key=lambda row: (-column[row], row))[:count]


def test_arg_top_ranks_impossible_scores_last() -> None:
    scores = torch.tensor([[-torch.inf], [0.0], [-torch.inf], [1.0]])
    assert arg_top(scores, 3).tolist() == [[3, 1, 0]]


@given(
    images=st.integers(1, 120),
    classes=st.integers(2, 9),
    seed=st.integers(0, 10**6),
    count=st.integers(1, 40),
    temperature=st.sampled_from([1.0, 0.1]),
)
@settings(max_examples=40, deadline=None)
def test_faiss_and_dense_search_return_the_arg_top_of_the_prediction(
    images: int, classes: int, seed: int, count: int, temperature: float
) -> None:
    pytest.importorskip("faiss")
    features, prototypes = unit(images, 16, seed), unit(classes, 16, seed + 1)
    wanted = torch.arange(1, classes)
    by_faiss, _ = retrieve(features, prototypes, wanted, count, temperature, "faiss")
    dense, _ = retrieve(features, prototypes, wanted, count, temperature, "dense")
    log_p = (features.double() @ prototypes.double().T / temperature).log_softmax(1)
    for c, a, b in zip(wanted.tolist(), by_faiss, dense, strict=True):
        assert a.tolist() == b.tolist()
        assert len(a) == min(count, images)
        kept = log_p[a, c]
        left_out = log_p[:, c].clone().index_fill_(0, a, -torch.inf)
        assert left_out.max() <= kept.min() + 1e-5  # equal to float32 rounding
        assert (kept.diff() <= 1e-5).all()


def test_copies_of_an_image_are_taken_in_order_by_both_searches() -> None:
    pytest.importorskip("faiss")
    features = unit(5, 16, 0).repeat(4, 1)
    prototypes = unit(3, 16, 1)
    wanted = torch.tensor([1, 2])
    for search in ("faiss", "dense"):
        found, _ = retrieve(features, prototypes, wanted, 6, search=search)
        for rows in found:
            assert rows[:4].tolist() == list(range(int(rows[0]), 20, 5))


def test_images_equal_to_float32_rounding_are_ranked_alike_by_both_searches() -> None:
    pytest.importorskip("faiss")
    prototypes, wanted = unit(9, 64, 1), torch.arange(9)
    for seed in range(10):
        near = unit(1, 64, seed) + 1e-7 * unit(16, 64, seed + 1)
        features = torch.cat([near, unit(20, 64, seed + 2)])
        by_faiss, _ = retrieve(features, prototypes, wanted, 8, search="faiss")
        dense, _ = retrieve(features, prototypes, wanted, 8, search="dense")
        assert torch.equal(torch.stack(by_faiss), torch.stack(dense))


def test_a_missing_faiss_is_named_with_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    features, prototypes, wanted = unit(20, 4, 0), unit(3, 4, 1), torch.tensor([2])
    with pytest.raises(UserError, match=r"pip install 'partgcd\[cpu\]'"):
        retrieve(features, prototypes, wanted, 3, search="faiss")
    auto, _ = retrieve(features, prototypes, wanted, 3, search="auto")
    dense, _ = retrieve(features, prototypes, wanted, 3, search="dense")
    assert torch.equal(auto[0], dense[0])


LABELS = torch.tensor([1, -1, 0, -1, -1, 1, -1, -1])


def select(mode: Mode, labels: Tensor = LABELS, old: int = 2, count: int = 2) -> list[tuple[int, int]]:
    features = unit(8, 6, 0)
    generator = torch.Generator().manual_seed(1)
    log_p = (3 * torch.randn(8, 4, generator=generator)).log_softmax(1)
    q = (3 * torch.randn(8, 4, generator=generator)).softmax(1)
    weights = log_p.exp() if mode == "prototypes" else q
    prototypes = calibrated_prototypes(features, weights, count)
    found = select_candidates(Scores(features, log_p, q, prototypes), labels, old, Wanted(mode, count))
    assert found.rows.dtype == found.classes.dtype == torch.int64
    expected = {"prediction": log_p, "sinkhorn": q}.get(mode, (features @ prototypes.T).log_softmax(1))
    for c in set(range(old if (labels >= 0).any() else 0, 4)):
        mine = found.rows[found.classes == c].tolist()
        ranked = expected[:, c].masked_fill(labels >= 0, -torch.inf).argsort(descending=True)
        assert mine == ranked[: len(mine)].tolist()
    return list(zip(found.rows.tolist(), found.classes.tolist(), strict=True))


MODES: list[Mode] = ["prediction", "sinkhorn", "prototypes", "calibrated"]


@pytest.mark.parametrize("mode", MODES)
def test_old_classes_use_their_labels_and_new_ones_the_best_unlabelled(mode: Mode) -> None:
    pairs = select(mode)
    assert pairs[:3] == [(2, 0), (0, 1), (5, 1)]
    assert [c for _, c in pairs[3:]] == [2, 2, 3, 3]
    assert all(LABELS[row] < 0 for row, _ in pairs[3:])


@pytest.mark.parametrize("old", [0, 2])
@pytest.mark.parametrize("mode", MODES)
def test_without_labels_every_class_is_retrieved(mode: Mode, old: int) -> None:
    pairs = select(mode, torch.full((8,), -1), old)
    assert [c for _, c in pairs] == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("mode", MODES)
def test_more_candidates_than_unlabelled_images_are_cut(mode: Mode) -> None:
    pairs = select(mode, count=50)
    assert len(pairs) == 3 + 2 * 5
    assert len(set(pairs)) == len(pairs)


@pytest.mark.parametrize("mode", MODES)
def test_no_new_class_and_no_unlabelled_image_leave_the_labels(mode: Mode) -> None:
    assert select(mode, old=4) == [(2, 0), (0, 1), (5, 1)]
    assert len(select(mode, torch.tensor([0, 1] * 4))) == 8


def test_ranking_by_prototypes_needs_prototypes() -> None:
    with pytest.raises(ValueError, match="prototypes"):
        scores = Scores(unit(8, 6, 0), torch.zeros(8, 4), torch.ones(8, 4), None)
        select_candidates(scores, LABELS, 2, Wanted("calibrated", 2))
