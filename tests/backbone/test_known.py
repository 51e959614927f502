"""The table of backbones."""

from __future__ import annotations

import pytest

from partgcd.backbone.known import OFFLINE, lineage_of_tag, offline_backbone, offline_names, resolve_name
from partgcd.config.errors import UserError


@pytest.mark.parametrize(
    ("name", "device", "wanted"),
    [
        ("auto", "cuda", "vit_base_patch16_224.dino"),
        ("auto", "cpu", "offline/vit-small"),
        ("auto", "mps", "offline/vit-small"),
        ("resnet50", "cuda", "resnet50"),
    ],
)
def test_auto_depends_on_the_device(name: str, device: str, wanted: str) -> None:
    assert resolve_name(name, device) == wanted


def test_offline_entries_are_complete_and_pinned() -> None:
    assert offline_names() == ["offline/vit-small", "offline/efficientnet-lite0"]
    for name, entry in OFFLINE.items():
        assert entry.name == name and "==" in entry.package and len(entry.sha256) == 64
        assert entry.licence and entry.lineage
    assert "inferred" in OFFLINE["offline/vit-small"].lineage
    # The publisher put the first digits of the digest into the name.
    assert OFFLINE["offline/efficientnet-lite0"].member.endswith("-57934424.pth")
    assert OFFLINE["offline/efficientnet-lite0"].sha256.startswith("57934424")


def test_unknown_offline_name_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"offline/vit-small, offline/efficientnet-lite0"):
        offline_backbone("offline/vit-huge")


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        ("dino", "no labels"),
        ("lvd142m", "LVD-142M"),
        ("fb_in22k_ft_in1k", "ImageNet-22k labels; trained on ImageNet-1k labels"),
        ("", "not known"),
    ],
)
def test_lineage_says_what_the_tag_tells(tag: str, words: str) -> None:
    assert words in lineage_of_tag("some_model", tag)
