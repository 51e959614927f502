from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from partgcd.config.errors import UserError
from partgcd.export.bundle import Bundle, open_bundle
from partgcd.registry.versions import Registry

Variant = Callable[..., Path]


def test_a_bundle_becomes_a_version_and_the_champion_is_resolved(registry: Registry, bundle: Bundle) -> None:
    assert registry.aliases() == {"champion": 1}
    assert open_bundle(registry.resolve()).id == bundle.id
    assert registry.resolve("1") == registry.resolve("v1") == registry.resolve("champion")
    record = registry.version("champion").record
    assert record["bundle"] == bundle.id and record["data"] == bundle.manifest.provenance.data
    assert record["classes"] == [entry.id for entry in bundle.manifest.classes] and record["parent"] is None
    assert registry.verify() == []


def test_promote_and_rollback_move_all_aliases_in_one_step(registry: Registry, variant: Variant) -> None:
    second = registry.add(variant("second"), parent=1)
    registry.point("candidate", second.number, "made")
    assert registry.aliases() == {"champion": 1, "candidate": 2}
    registry.promote()
    assert registry.aliases() == {"champion": 2, "previous": 1}
    registry.rollback()
    assert registry.aliases() == {"champion": 1, "previous": 2}
    registry.rollback()
    assert registry.aliases() == {"champion": 2, "previous": 1}
    registry.promote("2")
    assert registry.aliases() == {"champion": 2, "previous": 1}
    told = [(move["alias"], move["from"], move["to"]) for move in registry.moves()]
    assert told[:3] == [("champion", None, 1), ("candidate", None, 2), ("champion", 1, 2)]


def test_the_same_bundle_is_the_same_version(registry: Registry, bundle: Bundle, variant: Variant) -> None:
    assert registry.add(bundle.path).number == 1
    assert [registry.add(variant(name)).number for name in ("b", "c")] == [2, 3]
    assert [version.number for version in registry.versions()] == [1, 2, 3]


def test_another_family_is_refused(registry: Registry, variant: Variant) -> None:
    with pytest.raises(UserError, match="another family"):
        registry.add(variant("strange", {0: "c-aaaaaaaaaa", 1: "c-bbbbbbbbbb", 2: "c-cccccccccc"}))
    assert registry.add(variant("kin", {2: "c-cccccccccc"})).number == 2


def test_a_spoilt_bundle_neither_comes_in_nor_answers(
    registry: Registry, copied: Path, variant: Variant
) -> None:
    (copied / "MODEL_CARD.md").write_text("other words")
    with pytest.raises(UserError, match="was changed"):
        registry.add(copied)
    registry.add(variant("second"))
    spoilt = registry.version("2").bundle / "weights.safetensors"
    spoilt.write_bytes(spoilt.read_bytes()[:-1] + b"\0")
    with pytest.raises(UserError, match=r"weights.safetensors"):
        registry.promote("2")
    assert registry.aliases() == {"champion": 1}
    problems = registry.verify()
    assert len(problems) == 1 and "weights.safetensors" in problems[0]


def test_what_a_kill_left_is_ignored_and_removed(
    registry: Registry, bundle: Bundle, variant: Variant
) -> None:
    left = registry.path / "versions" / ".000002-abc.part"
    shutil.copytree(bundle.path, left / "bundle")
    (registry.path / ".aliases.json.123.tmp").write_text("{")
    assert [version.number for version in registry.versions()] == [1] and registry.verify() == []
    registry.add(variant("second"))
    assert not left.exists() and not (registry.path / ".aliases.json.123.tmp").exists()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("candidate", "has no candidate yet"),
        ("7", "no version 7"),
        ("best", "no version 'best'"),
        ("../1", "no version"),
    ],
)
def test_names_that_lead_nowhere(registry: Registry, name: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        registry.resolve(name)


def test_no_registry_no_init_over_other_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="registry init"):
        Registry(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        Registry.init(tmp_path)
    made = Registry.init(tmp_path / "fresh")
    assert Registry.init(tmp_path / "fresh").versions() == made.versions() == []
    (tmp_path / "fresh" / "registry.json").write_text('{"format": "partgcd registry", "schema_version": 2}')
    with pytest.raises(UserError, match="update partgcd"):
        Registry(tmp_path / "fresh")


def test_the_stamp_changes_with_every_move(registry: Registry, variant: Variant) -> None:
    before = registry.stamp()
    assert registry.stamp() == before
    registry.add(variant("second"))
    assert registry.stamp() == before
    registry.promote("2")
    assert registry.stamp() != before


def _adds(path: Path, bundles: list[Path]) -> None:
    for bundle in bundles:
        Registry(path).add(bundle)


def test_two_processes_add_at_once(registry: Registry, variant: Variant) -> None:
    bundles = [variant(f"b{number}") for number in range(6)]
    start = multiprocessing.get_context("fork")
    workers = [start.Process(target=_adds, args=(registry.path, bundles[side::2])) for side in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert [version.number for version in registry.versions()] == [1, 2, 3, 4, 5, 6, 7]
    assert registry.verify() == []
