"""MODEL_CARD.md: what a bundle is, what it was made from, how good it is and what it can't know."""

from __future__ import annotations

import re
from typing import Any

from partgcd.export.manifest import Manifest
from partgcd.export.novelty import CALIBRATED_AT

_MOST_CLASSES = 200


def model_card(manifest: Manifest) -> str:
    """The card's Markdown. Everything in it is in the manifest too, but for the words."""
    old = [each for each in manifest.classes if each.kind == "old"]
    new = [each for each in manifest.classes if each.kind == "discovered"]
    backbone, novelty, parity, graph = manifest.backbone, manifest.novelty, manifest.parity, manifest.graph
    images = manifest.provenance.images
    size = manifest.preprocessing.image_size
    parts = f"; {manifest.parts} parts a class" if manifest.parts else ""
    lines = [
        f"# {len(manifest.classes)} categories, {len(new)} of them discovered",
        "",
        f"Sorts photographs into {len(old)} categories that people labelled and {len(new)} that generalized category "
        f"discovery (method {manifest.method}) found among unlabelled ones{parts}. A discovered category is a group "
        "of images that look alike to the model. It has no name until a person gives it one, it may mix kinds or "
        "split one, and nobody has checked it.",
        "",
        "## Made from",
        "",
        f"- run {manifest.provenance.run} of {manifest.provenance.created}, seed {manifest.provenance.seed}, "
        f"partgcd {manifest.provenance.partgcd}",
        f"- {images['total']} images: {images['labelled']} labelled, {images['unlabelled']} unlabelled "
        f"(catalog {manifest.provenance.data[:16]})",
        f"- backbone {_plain(backbone.name)}; licence: {_plain(backbone.licence)}",
        f"- lineage: {_plain(backbone.lineage)}",
        "- the images' own licences and the rights of people in them are not known to this program",
        "",
        "## Quality",
        "",
        *_quality(manifest.accuracy),
        f"- {_percent(manifest.agreement)} of unlabelled training images get the class here that the run gave them "
        "(precision of arithmetic makes the rest)",
        f"- graph against the torch predictor on {parity.images} real images at batches "
        f"{', '.join(map(str, parity.batches))}: largest difference of a probability {parity.largest_difference:.1e}",
    ]
    if manifest.cost is not None:
        lines.append(
            f"- {graph.precision} changed the class of {_percent(manifest.cost.changed)} of {manifest.cost.images} "
            f"training images ({manifest.cost.fp32_blocks} first blocks left in fp32; largest difference of a "
            f"probability {manifest.cost.largest_difference:.2g})"
        )
    lines += [
        "",
        "## Novelty",
        "",
        f"An image whose score is above {novelty.threshold:.4g} is called novel. The stated rate of false alarms is "
        f"{_percent(novelty.false_alarm_rate)} of new images of these categories. It was set so that "
        f"{_percent(CALIBRATED_AT)} of {novelty.calibration_images} unlabelled images of the run lie above it, which "
        "the model saw without a label in training: an estimate, not a measurement on images never seen. It holds "
        "for images taken as the run's were, with categories in like proportions. An image of something else is "
        "often, but not always, called novel; the closer it is to a category, the less often.",
        "",
        "## Use",
        "",
        f"`model.onnx` (ONNX operator set {graph.opset}, {graph.precision}) takes `{graph.input}`: uint8, "
        f"[batch, 3, {size}, {size}], RGB planes of upright images whose short side was resized to "
        f"{manifest.preprocessing.short_side} pixels (bicubic, antialiased) and whose centre was cropped. It gives "
        f"{', '.join(f'`{name}`' for name in graph.outputs)}. Normalisation is inside.",
        "",
        "`partgcd classify BUNDLE IMAGES...` does all of it; `partgcd bundle check BUNDLE` verifies every file.",
        "",
        "No training image is in this bundle but as features of its exemplars"
        + (" and as thumbnails." if manifest.exemplars.thumbnails else "."),
        "",
        "## Categories",
        "",
        "| id | name | kind | labelled | assigned |",
        "|---|---|---|---|---|",
    ]
    for each in manifest.classes[:_MOST_CLASSES]:
        lines.append(
            f"| {_plain(each.id)} | {_plain(each.name)} | {each.kind} | {each.labelled} | {each.assigned} |"
        )
    if len(manifest.classes) > _MOST_CLASSES:
        lines.append(f"\nand {len(manifest.classes) - _MOST_CLASSES} more, in manifest.json")
    return "\n".join(lines) + "\n"


def _quality(accuracy: dict[str, Any] | None) -> list[str]:
    if accuracy is None:
        return ["- accuracy: not measured, the run had no truth"]
    three = ", ".join(
        f"{name} {'not measured' if value is None else _percent(value)}"
        for name, value in accuracy["v2"].items()
    )
    return [f"- clustering accuracy (one match over all): {three}, on {_plain(str(accuracy['set']))}"]


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def _plain(text: str) -> str:
    """Names as text: no line breaks, no table cells, no markup of their own."""
    flat = "".join(letter if letter.isprintable() else " " for letter in text)
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", flat)
