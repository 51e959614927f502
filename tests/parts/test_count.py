from __future__ import annotations

import pytest
import torch
from sklearn.metrics import silhouette_score
from torch import Tensor

from partgcd.parts.count import choose_parts, silhouette


def classes_of_blobs(k: int, classes: int, n: int, seed: int = 0, d: int = 8) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    centres = torch.eye(k, d) * 6
    out = []
    for _ in range(classes):
        own = centres + torch.randn(k, d, generator=g) * 0.3
        out.append(own[torch.randint(k, (n,), generator=g)] + torch.randn(n, d, generator=g) * 0.5)
    return out


@pytest.mark.parametrize("k", [3, 4, 5, 6])
def test_the_true_number_of_parts_is_found(k: int) -> None:
    count = choose_parts(classes_of_blobs(k, 4, 150), 2, 7, seed=0)
    assert count.k == k
    assert set(count.silhouettes) == set(range(2, 8)) and count.classes == 4
    assert count.silhouettes[k] == max(count.silhouettes.values()) <= 1.0
    assert count.seconds > 0


def test_one_pseudo_class_without_labels_is_enough() -> None:
    pooled = torch.cat(classes_of_blobs(4, 3, 200))
    assert choose_parts([pooled], 3, 6, patches_per_class=300).k == 4


def test_short_classes_are_skipped_and_many_are_drawn_from() -> None:
    patches = [*classes_of_blobs(3, 6, 80), torch.zeros(5, 8), torch.zeros(0, 8)]
    assert choose_parts(patches, 2, 5).classes == 6
    a, b = (choose_parts(patches, 2, 5, seed=1, max_classes=3) for _ in range(2))
    assert a.classes == 3 and a.silhouettes == b.silhouettes


def test_equal_scores_choose_the_smaller_number() -> None:
    # identical patches: one cluster whatever K is, every silhouette 0
    count = choose_parts([torch.ones(40, 3)], 3, 5)
    assert count.k == 3 and set(count.silhouettes.values()) == {0.0}


def test_nothing_to_choose_from_is_refused() -> None:
    with pytest.raises(ValueError, match="no class has the 9 patches"):
        choose_parts([torch.zeros(8, 3)], 3, 8)
    with pytest.raises(ValueError, match="k_min"):
        choose_parts(classes_of_blobs(3, 1, 50), 6, 5)


@pytest.mark.parametrize("seed", range(4))
def test_the_silhouette_is_that_of_scikit_learn(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(60, 4, generator=g, dtype=torch.float64)
    labels = torch.randint(5, (60,), generator=g)
    labels[labels == 2] = 0  # a cluster number nobody has
    labels[7] = 2 if seed % 2 else int(labels[7])  # or one that a single point has
    got = silhouette(torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist"), labels, 5)
    assert got == pytest.approx(silhouette_score(x.numpy(), labels.numpy()), abs=1e-9)
