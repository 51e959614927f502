from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from partgcd.config.errors import UserError
from partgcd.data.decode import BrokenImage
from partgcd.export import session as sessions
from partgcd.export.bundle import Bundle
from partgcd.export.graph_names import output_names
from partgcd.export.predictor import Answer, Failure, Predictor
from partgcd.export.source import open_source
from partgcd.export.stream import classify_stream
from partgcd.run.folder import RunFolder

PhotoOf = Callable[..., NDArray[np.uint8]]


@pytest.fixture(scope="module")
def predictor(bundle: Bundle) -> Predictor:
    return Predictor.load(bundle.path, 1, "cpu")


def files_of(photos: Path) -> list[Path]:
    return sorted(photos.rglob("*.png"))


def test_it_sees_what_training_saw_and_answers_as_the_run_did(
    predictor: Predictor, run: RunFolder, photos: Path
) -> None:
    source = open_source(run)
    rows = np.arange(len(source.catalog))
    files = [source.catalog.file(row) for row in rows.tolist()]
    seen = np.stack([predictor.prepare(file) for file in files])
    assert np.array_equal(seen, source.pixels(rows))
    answers = predictor.classify(files)
    assert all(isinstance(each, Answer) for each in answers)
    index = {each.id: each.index for each in predictor.classes}
    found = np.array([index[each.best.id] for each in answers if isinstance(each, Answer)])
    unlabelled = ~source.catalog.labelled
    assert (found == source.predicted)[unlabelled].mean() > 0.95


def test_bytes_files_and_arrays_of_one_image_have_one_answer(
    predictor: Predictor, photos: Path, photo_of: PhotoOf
) -> None:
    file = photos / "ash" / "0.png"
    one, two, three = predictor.classify([file, file.read_bytes(), photo_of(0, 0)])
    assert one == two == three and isinstance(one, Answer)
    assert one.version == predictor.version and one.overlay is None and len(one.top) == 1


def test_top_k_is_sorted_and_never_more_than_there_are(predictor: Predictor, photos: Path) -> None:
    (answer,) = predictor.classify([photos / "ash" / "0.png"], top_k=99)
    assert isinstance(answer, Answer) and len(answer.top) == len(predictor.classes) == 4
    probabilities = [each.probability for each in answer.top]
    assert probabilities == sorted(probabilities, reverse=True) and sum(probabilities) == pytest.approx(
        1.0, abs=1e-5
    )
    assert answer.best is answer.top[0]
    with pytest.raises(ValueError, match="top_k is 0"):
        predictor.classify([photos / "ash" / "0.png"], top_k=0)


def test_one_bad_image_fails_alone(predictor: Predictor, photos: Path, tmp_path: Path) -> None:
    good = photos / "ash" / "0.png"
    bad: list[object] = [
        b"", b"no image", tmp_path / "missing.png", tmp_path, good.read_bytes()[:200],
        np.zeros((4, 4, 3), np.float32), np.zeros((4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8),
    ]  # fmt: skip
    mixed = [good, *bad, good]
    results = predictor.classify(mixed, batch=3)  # type: ignore[arg-type]
    assert [isinstance(each, Failure) for each in results] == [False, *[True] * len(bad), False]
    assert results[0] == results[-1]
    reasons = [each.reason for each in results if isinstance(each, Failure)]
    assert all(reason and "\n" not in reason for reason in reasons) and "file not found" in reasons
    assert predictor.classify([]) == []


def test_odd_images_are_read_as_training_reads_them(
    predictor: Predictor, malformed_corpus: tuple[Path, dict[str, object]]
) -> None:
    folder, expected = malformed_corpus
    for name, told in expected.items():
        readable = getattr(told, "pixels", None) is not None
        assert isinstance(predictor.prepare_or_fail(folder / name), Failure) is not readable, name


def test_a_batch_is_no_different_from_one_at_a_time(predictor: Predictor, photos: Path) -> None:
    files = files_of(photos)[:9]
    together = predictor.classify(files, batch=9)
    apart = [predictor.classify([file])[0] for file in files]
    for one, other in zip(together, apart, strict=True):
        assert isinstance(one, Answer) and isinstance(other, Answer)
        assert one.best.id == other.best.id
        assert one.best.probability == pytest.approx(other.best.probability, abs=1e-5)
        assert one.novelty == pytest.approx(other.novelty, abs=1e-2)


def test_many_threads_may_ask_at_once(predictor: Predictor, photos: Path) -> None:
    files = files_of(photos)[:8]
    alone = [predictor.classify([file])[0] for file in files]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda file: predictor.classify([file])[0], files * 4))
    assert found == alone * 4


def test_explaining_draws_the_parts(predictor: Predictor, photos: Path) -> None:
    (answer,) = predictor.classify([photos / "ash" / "0.png"], explain=True)
    assert isinstance(answer, Answer) and answer.overlay is not None
    assert answer.overlay.size == (64, 64) and answer.overlay.mode == "RGB"
    seen = Image.fromarray(predictor.prepare(photos / "ash" / "0.png").transpose(1, 2, 0))
    assert np.abs(np.asarray(answer.overlay).astype(int) - np.asarray(seen)).mean() > 5


def test_the_flag_is_the_score_above_the_threshold(predictor: Predictor, photos: Path) -> None:
    level = predictor.manifest.novelty.threshold
    answers = predictor.classify(files_of(photos))
    assert all(isinstance(each, Answer) and each.novel == (each.novelty > level) for each in answers)


def test_pixels_that_do_not_fit_are_the_callers_mistake(predictor: Predictor) -> None:
    for shape in ((1, 3, 65, 64), (3, 64, 64), (1, 64, 64, 3)):
        with pytest.raises(ValueError, match="pixels must be uint8"):
            predictor.answer(np.zeros(shape, np.uint8))
    with pytest.raises(BrokenImage):
        predictor.prepare(b"x")


def test_threads_do_not_spin_and_are_as_many_as_asked(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime

    seen = []
    real = onnxruntime.InferenceSession
    monkeypatch.setattr(
        onnxruntime,
        "InferenceSession",
        lambda data, options, providers: seen.append(options) or real(data, options),
    )
    Predictor.load(bundle.path, 3, "cpu")
    Predictor.load(bundle.path, 0, "cpu")
    assert [each.intra_op_num_threads for each in seen] == [3, sessions.usable_cpus()]
    assert all(each.inter_op_num_threads == 1 for each in seen)
    assert all(each.get_session_config_entry("session.intra_op.allow_spinning") == "0" for each in seen)


def test_without_onnxruntime_the_pip_line_is_named(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"pip install 'partgcd\[cpu\]'"):
        Predictor.load(bundle.path)


def test_the_predictor_needs_no_torch(bundle: Bundle) -> None:
    code = (
        "import sys\nsys.modules['torch'] = None\nfrom pathlib import Path\n"
        "from partgcd.export.predictor import Predictor\n"
        f"print(len(Predictor.load(Path({str(bundle.path)!r}), 1, 'cpu').classes), 'timm' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["4", "False"], done.stderr[-2000:]


def test_a_stream_keeps_order_and_failures(predictor: Predictor, photos: Path, tmp_path: Path) -> None:
    files = files_of(photos)[:10]
    files[4] = tmp_path / "missing"
    found = list(classify_stream(predictor, files, batch=4))
    assert [file for file, _ in found] == files
    assert [isinstance(each, Failure) for _, each in found] == [place == 4 for place in range(10)]
    for (_, streamed), alone in zip(found, predictor.classify(files), strict=True):
        if isinstance(streamed, Answer):
            assert isinstance(alone, Answer) and streamed.best.id == alone.best.id


def test_a_stream_reads_no_further_than_it_must(predictor: Predictor, photos: Path) -> None:
    drawn = 0
    file = photos / "ash" / "0.png"

    def endless() -> Iterator[Path]:
        nonlocal drawn
        while True:
            drawn += 1
            yield file

    stream = classify_stream(predictor, endless(), batch=4)
    for _ in range(9):
        next(stream)
    stream.close()
    assert drawn <= 9 + 4 + 2 * 4


def test_a_thousand_images_take_no_more_memory_than_a_hundred(
    predictor: Predictor, photo_of: PhotoOf
) -> None:
    alive: list[int] = []
    now = 0

    class Counted(Predictor):
        def prepare_or_fail(self, image: object) -> NDArray[np.uint8] | Failure:
            nonlocal now
            now += 1
            alive.append(now)
            return np.zeros((3, 64, 64), np.uint8)

        def answer_all(self, prepared, top_k=1, explain=False):  # type: ignore[no-untyped-def]
            nonlocal now
            now -= len(prepared)
            return [Failure("none", "") for _ in prepared]

    counted = Counted.__new__(Counted)
    assert len(list(classify_stream(counted, (Path("x") for _ in range(1000)), batch=8, decoders=1))) == 1000
    assert max(alive) <= 3 * 8


def test_torch_and_predictor_agree_on_novelty(predictor: Predictor, run: RunFolder, photos: Path) -> None:
    """The graph's score is the library's own function of the same image."""
    from partgcd.export.calibrate import calibrate
    from partgcd.export.graph import Graph

    source = open_source(run)
    found = calibrate(source, lambda *_: None)
    graph = Graph(source.model, source.parts, source.settings, found.scale)
    pixels = source.pixels(np.arange(5))
    with torch.no_grad():
        answers = graph(torch.from_numpy(pixels))
    expected = answers[output_names(True).index("novelty")].numpy()
    scores = [each.novelty for each in predictor.answer(pixels)]
    assert np.abs(np.array(scores) - expected).max() < 5e-3
    assert found.threshold == pytest.approx(predictor.manifest.novelty.threshold)
