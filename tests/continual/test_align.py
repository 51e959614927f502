from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from partgcd.config.errors import UserError
from partgcd.continual.align import add_aligned
from partgcd.export.bundle import Bundle, open_bundle
from partgcd.registry.versions import Registry

Variant = Callable[..., Path]
OTHERS = {0: "c-aaaaaaaaaa", 1: "c-bbbbbbbbbb", 2: "c-cccccccccc"}


def test_classes_that_both_know_get_the_champions_ids(
    registry: Registry, variant: Variant, bundle: Bundle
) -> None:
    before = [entry.id for entry in bundle.manifest.classes]
    version, told = add_aligned(registry, variant("other run", OTHERS))
    assert version.number == 2 and told.endswith("the others are new")
    assert version.class_ids[:2] == before[:2], "labels of one name are one class"
    assert version.class_ids[2] in (before[2], OTHERS[2])
    assert registry.verify() == [] and registry.aliases() == {"champion": 1}
    assert not list(registry.path.glob(".align-*"))
    assert open_bundle(version.bundle).manifest.provenance.run == "other run"


def test_another_backbone_can_not_be_aligned(
    registry: Registry, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    from partgcd.continual import align

    other = variant("other run", OTHERS)

    def opened(path: Path) -> Bundle:
        found = open_bundle(path)
        if path != other:
            return found
        backbone = found.manifest.backbone.model_copy(update={"weights": "0" * 64})
        return Bundle(found.path, found.id, found.manifest.model_copy(update={"backbone": backbone}))

    monkeypatch.setattr(align, "open_bundle", opened)
    with pytest.raises(UserError, match="frozen backbone"):
        add_aligned(registry, other)
