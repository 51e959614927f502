"""The Python door: scikit-learn's own checks, labels of every kind, and photos end to end."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks
from tiny import save_photo

import partgcd
from partgcd import clustering, discoverer
from partgcd.api import export, load, train
from partgcd.clustering import SemiSupervisedKMeans, estimate_classes
from partgcd.config.errors import UserError
from partgcd.discoverer import Discoverer
from partgcd.export.predictor import Predictor

TINY: dict[str, object] = {
    "backbone.name": "test_vit", "backbone.random_weights": True, "data.image_size": 64, "train.epochs": 1,
    "train.batch_size": 12, "train.threads": 1, "train.device": "cpu", "train.precision": "fp32",
    "train.view_pool": 2, "loss.projector_hidden": 32, "loss.projector_out": 16, "parts.count": 3,
    "parts.min_patches": 10, "parts.projection": 8,
}  # fmt: skip


@parametrize_with_checks([Discoverer(), SemiSupervisedKMeans(n_clusters=3)])
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    """None is expected to fail; scikit-learn itself skips those of arrays of other libraries."""
    check(estimator)


@pytest.mark.parametrize("module", [clustering, discoverer])
def test_the_examples_run(module: Any) -> None:
    ran = doctest.testmod(module)
    assert ran.attempted > 0 and ran.failed == 0


def blobs(classes: int, each: int) -> NDArray[np.float32]:
    draw = np.random.default_rng(0)
    return (
        np.repeat(np.eye(classes, 8), each, axis=0) + 0.05 * draw.normal(size=(classes * each, 8))
    ).astype(np.float32)


@pytest.mark.parametrize(
    ("known", "unknown", "classes"),
    [
        ((7, 3), -1, [3, 7, 8, 9]),
        ((7, 3), None, [3, 7, 8, 9]),
        ((7.0, 3.0), float("nan"), [3, 7, 8, 9]),
        (("oak", "ash"), None, ["ash", "oak", "new 1", "new 2"]),
        (("oak", "new 1"), None, ["new 1", "oak", "new 2", "new 3"]),
    ],
)
def test_labels_keep_their_names_and_new_ones_are_of_their_kind(
    known: tuple[Any, Any], unknown: Any, classes: list[Any]
) -> None:
    y = [known[0]] * 5 + [unknown] * 5 + [known[1]] * 5 + [unknown] * 25
    made = Discoverer(classes=4).fit(blobs(4, 10), y)
    assert made.classes_.tolist() == classes
    assert set(made.labels_[:10].tolist()) == {known[0]} and set(made.labels_[10:20].tolist()) == {known[1]}
    assert len(set(made.labels_.tolist())) == 4
    assert made.predict(blobs(4, 10)).tolist() == made.labels_.tolist()
    assert np.allclose(made.predict_proba(blobs(4, 10)).sum(axis=1), 1, atol=1e-5)


def test_what_does_not_fit_is_one_clear_line() -> None:
    with pytest.raises(ValueError, match="classes=2 does not fit n_samples=40 rows with 3 labels"):
        Discoverer(classes=2).fit(blobs(4, 10), [0, 1, 2] + [-1] * 37)
    with pytest.raises(ValueError, match=r"y has shape \(3,\)"):
        SemiSupervisedKMeans(4).fit(blobs(4, 10), [0, 1, 2])
    with pytest.raises(ValueError, match="8"):
        estimate_classes(blobs(2, 3))
    with pytest.raises(ValueError, match="no run of photos"):
        Discoverer(classes=4).fit(blobs(4, 10)).report("x.html")
    with pytest.raises(UserError, match="holds no saved Discoverer"):
        Discoverer.load("nowhere")


def test_embeddings_are_saved_without_pickle_and_come_back(tmp_path: Path) -> None:
    made = Discoverer(classes=4).fit(blobs(4, 10), ["oak"] * 5 + [None] * 35)
    made.save(tmp_path / "kept")
    assert {each.suffix for each in (tmp_path / "kept").iterdir()} == {".json", ".safetensors"}
    again = load(tmp_path / "kept")
    assert isinstance(again, Discoverer) and again.predict(blobs(4, 10)).tolist() == made.labels_.tolist()
    with pytest.raises(UserError, match="not empty"):
        made.save(tmp_path / "kept")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two kinds of 8 photos."""
    folder = tmp_path_factory.mktemp("photos")
    files = [folder / f"{kind}-{number}.png" for kind in (0, 1, 2) for number in range(8)]
    for file in files:
        kind, number = map(int, file.stem.split("-"))
        save_photo(file, kind, number)
    return files


LABELS = [5] * 6 + [-1] * 2 + [2] * 6 + [-1] * 10


@pytest.fixture(scope="module")
def fitted(photos: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Discoverer:
    out = tmp_path_factory.mktemp("fit") / "out"
    return Discoverer(classes=3, backbone="test_vit", settings=TINY, out=out).fit(photos, LABELS)


def test_photos_get_answers_parts_a_report_and_a_bundle(
    fitted: Discoverer, photos: list[Path], tmp_path: Path
) -> None:
    assert fitted.labels_.shape == (24,) and fitted.labels_[:6].tolist() == [5] * 6
    assert fitted.classes_.tolist()[:2] == [2, 5] and len(fitted.classes_) == 3
    probabilities = fitted.predict_proba(photos[:5])
    assert probabilities.shape == (5, 3) and np.allclose(probabilities.sum(axis=1), 1, atol=1e-4)
    features = fitted.transform(photos[:5])
    assert np.allclose(np.linalg.norm(features, axis=1), 1, atol=1e-5)
    maps = fitted.parts(photos[:2])
    assert maps.shape[0] == 2 and maps.shape[3] == 3 and np.allclose(maps.sum(axis=3), 1, atol=1e-4)
    unlabelled = [row for row, label in enumerate(LABELS) if label == -1]
    assert fitted.predict(photos)[unlabelled].tolist() == fitted.labels_[unlabelled].tolist()
    assert "<html" in fitted.report(tmp_path / "page.html").read_text()[:200].lower()
    bundle = load(fitted.export(tmp_path / "model"), threads=1)
    assert isinstance(bundle, Predictor)
    answers = bundle.classify(photos[16:])
    places = {each.name: place for place, each in enumerate(bundle.classes)}
    told = [fitted.classes_[places[answer.best.name]] for answer in answers]  # type: ignore[union-attr]
    assert told == fitted.predict(photos[16:]).tolist()


def test_saved_photos_answer_alike(fitted: Discoverer, photos: list[Path], tmp_path: Path) -> None:
    fitted.save(tmp_path / "kept")
    again = load(tmp_path / "kept")
    assert isinstance(again, Discoverer)
    assert np.allclose(again.predict_proba(photos[:6]), fitted.predict_proba(photos[:6]), atol=1e-6)
    assert again.labels_.tolist() == fitted.labels_.tolist()


def test_images_as_an_array_are_the_photos_they_were(fitted: Discoverer, photos: list[Path]) -> None:
    images = np.stack([np.asarray(Image.open(file).convert("RGB")) for file in photos])
    made = clone(fitted).set_params(out=None).fit(images, LABELS)
    assert made.labels_.tolist() == fitted.labels_.tolist()
    assert np.allclose(made.predict_proba(images[:4]), fitted.predict_proba(photos[:4]), atol=1e-5)
    with pytest.raises(ValueError, match="uint8"):
        made.predict(images.astype(np.float32))


def test_a_broken_photo_is_marked_and_loses_nothing(
    photos: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff no photo")
    settings = {**TINY, "data.max_broken": 0.2}
    made = Discoverer(classes=3, method="simgcd", settings=settings, verbose=True).fit(
        [tmp_path / "broken.jpg", *photos], [None, *LABELS]
    )
    told = capsys.readouterr().err.splitlines()
    assert told.count("training epoch 1/1") == 1 and "images" in told, "a long fit says how far it is"
    assert made.labels_[0] == -1 and -1 not in made.labels_[1:].tolist()
    with pytest.raises(UserError, match=r"broken\.jpg' can't be read"):
        made.predict([tmp_path / "broken.jpg"])
    with pytest.raises(ValueError, match="no parts"):
        made.parts(photos[:1])


def test_a_fit_on_a_folder_is_what_the_command_makes(
    fitted: Discoverer, photos: list[Path], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    for file, label in zip(photos, LABELS, strict=True):
        place = data / ("unlabelled" if label == -1 else f"kind{label}") / file.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.read_bytes())
    made = Discoverer(classes=3, backbone="test_vit", settings=TINY).fit(data)
    words = [word for key, value in TINY.items() for word in ("--set", f"{key}={str(value).lower()}")]
    done = subprocess.run(
        [sys.executable, "-m", "partgcd", "train", "--engine", "inline", "--data", str(data), "--out", "run",
         "--classes", "3", *words],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (
        made.run_ / "model.safetensors"
    ).read_bytes()
    with pytest.raises(ValueError, match="leave y out"):
        made.fit(data, LABELS)


def test_a_run_is_trained_exported_and_not_begun_twice(photos: list[Path], tmp_path: Path) -> None:
    settings = {**TINY, "discovery.method": "gcd", "discovery.classes": 3}
    run = train(photos[0].parent, tmp_path / "run", settings)
    again = train(photos[0].parent, tmp_path / "run", settings)
    assert run.path == again.path and run.report.exists()
    with pytest.raises(UserError, match="already holds a run"):
        train(photos[0].parent, tmp_path / "run", {**settings, "seed": 1})
    with pytest.raises(UserError, match="no method 'magic'"):
        train(photos[0].parent, tmp_path / "other", {"discovery.method": "magic"})
    made = export(run, tmp_path / "model")
    assert made.manifest.method == "gcd"
    with pytest.raises(UserError):
        export(run, tmp_path / "model")


def test_the_door_opens_without_loading_the_house() -> None:
    code = (
        "import sys, partgcd\n"
        "assert set(partgcd.__all__) <= set(dir(partgcd))\n"
        "print(*(name for name in ('torch', 'sklearn', 'numpy') if name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
    assert all(getattr(partgcd, name) is not None for name in partgcd.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = partgcd.nothing
