"""The Python that the README and the guides show runs, and so does the notebook."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/python.md")


def blocks(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a small field guide where the pages say that one is."""
    folder = tmp_path_factory.mktemp("guide")
    small = ("--species", "12", "--per-species", "4", "--size", "96")
    subprocess.run(
        [sys.executable, "-m", "partgcd", "demo", "--out", "demo", *small],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    yield folder


@pytest.fixture(scope="module")
def weights() -> None:
    from partgcd.backbone.weights import weights_status

    if weights_status("offline/vit-small") is None:
        pytest.skip("offline/vit-small is not here: partgcd weights fetch offline/vit-small")


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs_in_order(page: str, place: Path, weights: None) -> None:
    text = "\n".join(blocks(page))
    assert text
    # The same lines in less time.
    quick = text.replace(
        'settings={"data.image_size": 154}', 'settings={"data.image_size": 98, "train.epochs": 1}'
    )
    done = subprocess.run(
        [sys.executable, "-c", quick], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_notebook_runs_from_top_to_bottom(
    tmp_path: Path, weights: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(ROOT / "docs" / "first_steps.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.get("outputs") for cell in notebook.cells), "outputs are made, not stored"
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert (tmp_path / "page.html").exists() and (tmp_path / "model" / "model.onnx").exists()
