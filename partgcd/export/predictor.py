"""The one predictor behind the command line and every server: image files in, named categories out.

Imports no torch: it is ready in a fraction of a second.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from partgcd.config.errors import UserError
from partgcd.data.decode import BrokenImage, decoded
from partgcd.data.pixels import evaluation_view
from partgcd.export.bundle import GRAPH, Bundle, open_bundle
from partgcd.export.check import check_interface
from partgcd.export.graph_names import FEATURE
from partgcd.export.manifest import ClassEntry
from partgcd.export.session import Provider, open_session, run
from partgcd.parts.tint import tinted

ImageSource = bytes | Path | NDArray[np.uint8]

Fold = Callable[[NDArray[np.float32], NDArray[np.float32] | None], NDArray[np.float32]]
"""Probabilities [B, C] and class tokens [B, D] (None in older bundles) to probabilities [B, L] of other classes."""

BATCH = 8
"""Images a run of the graph: on a CPU more gain nothing and only take memory."""


@dataclass(frozen=True)
class Choice:
    """One category as an answer: its probability is the fused one, in 0..1."""

    id: str
    name: str
    kind: str
    probability: float


@dataclass(frozen=True)
class Answer:
    """What an image is.

    Attributes:
        top: the best categories, the best first; at least one.
        novel: whether the novelty score is above the bundle's threshold.
        novelty: the score; higher is stranger.
        overlay: the image as the model saw it, tinted by its parts; only if asked for.
        version: id of the bundle that answered.
    """

    top: tuple[Choice, ...]
    novel: bool
    novelty: float
    version: str
    overlay: Image.Image | None = None

    @property
    def best(self) -> Choice:
        """The category the image is put into."""
        return self.top[0]


@dataclass(frozen=True)
class Failure:
    """Why an image has no answer, in words for people."""

    reason: str
    version: str


class Predictor:
    """A bundle ready to answer. Make one with `load`; any number of threads may call it."""

    def __init__(self, session: Any, bundle: Bundle) -> None:
        manifest = bundle.manifest
        self.bundle = bundle
        self.manifest = manifest
        self.version = bundle.id
        self.classes: list[ClassEntry] = manifest.classes
        self.has_parts = manifest.parts is not None
        self._fold: Fold | None = None
        self._session = session
        self._data = manifest.preprocessing.settings()

    @classmethod
    def load(cls, path: Path, threads: int = 0, provider: Provider = "auto") -> Predictor:
        """Verify a bundle and start its graph.

        Args:
            threads: of one run of the graph; 0 takes the CPUs this process may use.
            provider: 'auto' is the GPU if onnxruntime sees one.

        Raises:
            UserError: the bundle is not what was exported, onnxruntime is missing, or there is no such device.
        """
        bundle = open_bundle(path)
        session = open_session(bundle.read(GRAPH), threads, provider)
        check_interface(session, bundle.manifest)
        return cls(session, bundle)

    def relabelled(self, classes: list[ClassEntry], fold: Fold) -> Predictor:
        """The same graph answering with other classes: names changed, classes joined or split after the graph."""
        other = copy.copy(self)
        other.classes, other._fold = classes, fold
        return other

    @property
    def image_size(self) -> int:
        """S, the side of what the graph sees, pixels."""
        return self._data.image_size

    def prepare(self, image: ImageSource) -> NDArray[np.uint8]:
        """What the graph sees of an image, [3, S, S]: file or its bytes, or upright RGB pixels [H, W, 3].

        Raises:
            BrokenImage: it can't be read.
        """
        if isinstance(image, np.ndarray):
            if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or 0 in image.shape:
                raise BrokenImage(
                    f"an array of {image.dtype} {list(image.shape)} is no image: uint8 [H, W, 3]"
                )
            return evaluation_view(Image.fromarray(np.ascontiguousarray(image)), self._data)
        try:
            with decoded(image, self._data.max_megapixels) as picture:
                return evaluation_view(picture, self._data)
        except MemoryError as error:
            raise BrokenImage("does not fit in memory") from error

    def answer(self, pixels: NDArray[np.uint8], top_k: int = 1, explain: bool = False) -> list[Answer]:
        """Answers for prepared images [B, 3, S, S], in one run of the graph.

        Args:
            top_k: how many categories an answer names, at least 1; never more than there are.
            explain: adds the overlay of the parts.

        Raises:
            ValueError: the pixels do not fit, ``top_k`` is below 1, or a bundle without parts is to explain.
            UserError: the graph can't be run, or answers with what is no number.
        """
        size = self.image_size
        if pixels.ndim != 4 or pixels.shape[1:] != (3, size, size) or pixels.dtype != np.uint8:
            raise ValueError(
                f"pixels must be uint8 [B, 3, {size}, {size}], not {pixels.dtype} {list(pixels.shape)}"
            )
        if top_k < 1:
            raise ValueError(f"top_k is {top_k}: at least 1")
        if explain and not self.has_parts:
            raise ValueError("this bundle's method has no parts to show")
        if len(pixels) == 0:
            return []
        found = run(self._session, pixels)
        answers = []
        probabilities = found["fused"]
        if not (np.isfinite(probabilities).all() and np.isfinite(found["novelty"]).all()):
            raise UserError("model.onnx answers with what is no number: export the bundle again", 1)
        if self._fold is not None:
            probabilities = self._fold(probabilities, found.get(FEATURE))
        for row, fused in enumerate(probabilities):
            order = np.argsort(-fused, kind="stable")[:top_k]
            score = float(found["novelty"][row])
            overlay = None
            if explain:
                photo = Image.fromarray(np.ascontiguousarray(pixels[row].transpose(1, 2, 0)))
                overlay = tinted(
                    photo, found["maps"][row], found["attention"][row], self.manifest.backbone.grid
                )
            answers.append(
                Answer(
                    tuple(self._choice(int(index), float(fused[index])) for index in order),
                    score > self.manifest.novelty.threshold, score, self.version, overlay,
                )
            )  # fmt: skip
        return answers

    def classify(
        self, images: Sequence[ImageSource], top_k: int = 1, explain: bool = False, batch: int = BATCH
    ) -> list[Answer | Failure]:
        """An answer for each image, in order; one that can't be read fails alone. Errors as `answer`."""
        results: list[Answer | Failure] = []
        for start in range(0, len(images), batch):
            prepared = [self.prepare_or_fail(image) for image in images[start : start + batch]]
            results += self.answer_all(prepared, top_k, explain)
        return results

    def prepare_or_fail(self, image: ImageSource) -> NDArray[np.uint8] | Failure:
        """`prepare`, with the reason as a value."""
        try:
            return self.prepare(image)
        except BrokenImage as broken:
            return Failure(broken.reason, self.version)

    def answer_all(
        self, prepared: Sequence[NDArray[np.uint8] | Failure], top_k: int = 1, explain: bool = False
    ) -> list[Answer | Failure]:
        """Answers for what `prepare_or_fail` gave, in one run of the graph; failures stay in their places."""
        good = [each for each in prepared if not isinstance(each, Failure)]
        answers = iter(self.answer(np.stack(good), top_k, explain) if good else [])
        return [each if isinstance(each, Failure) else next(answers) for each in prepared]

    def _choice(self, index: int, probability: float) -> Choice:
        entry = self.classes[index]
        return Choice(entry.id, entry.name, entry.kind, probability)
