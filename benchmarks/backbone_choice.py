"""Does `--backbone auto` take the backbone in which the photos sort best? Both offline ones, twelve draws of classes.

    python benchmarks/backbone_choice.py [--photos DIR] [--out FILE]

Of each draw (8 to 60 classes, 20 images each; half of the classes old, half of an old class's images labelled) and each
backbone: accuracy over the unlabelled images of semi-supervised k-means told the number of classes, which is the truth
that the choice does not see, and the two scores that it has, with labels and without.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from partgcd.backbone.load import load_backbone
from partgcd.cluster.feature_scores import hidden_class_accuracy, neighbour_structure
from partgcd.cluster.metrics import clustering_accuracy
from partgcd.cluster.semi_kmeans import semi_kmeans
from partgcd.config.load import load_settings
from partgcd.data.decode import decode
from partgcd.data.pixels import evaluation_view
from partgcd.data.walk import walk
from partgcd.disk.files import write_json
from partgcd.model.module import DiscoveryModel

BACKBONES = ("offline/vit-small", "offline/efficientnet-lite0")
SETS = ("cub100", "grocery")
CLASSES = (8, 12, 17, 25, 40, 60)
SIZE, OF_A_CLASS = 154, 20


@torch.no_grad()
def features(folder: Path, name: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Class tokens of the first images of every class, unit norm, and their classes."""
    settings = load_settings("default", None, None, {"backbone.name": name, "data.image_size": SIZE})
    model = DiscoveryModel(load_backbone(settings.backbone, SIZE, "cpu"), 2, None, settings)
    files: dict[str, list[Path]] = {}
    for path in walk(folder.resolve()).files:
        if "/" in path:
            files.setdefault(path.partition("/")[0], []).append(folder / path)
    found, truth = [], []
    for number, own in enumerate(files[each] for each in sorted(files)):
        views = [evaluation_view(decode(file, 100.0), settings.data) for file in own[:OF_A_CLASS]]
        cls = model(model.backbone.trunk(torch.from_numpy(np.stack(views))), None).cls.float()
        found.append(torch.nn.functional.normalize(cls, dim=1).numpy())
        truth += [number] * len(views)
    return np.concatenate(found), np.array(truth)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photos", type=Path, default=os.environ.get("PARTGCD_PHOTOS"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/backbone_choice.json"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    lines, right = [], {"hidden": 0, "neighbours": 0}
    for name in SETS:
        kept = {each: features(asked.photos / name, each) for each in BACKBONES}
        truth = kept[BACKBONES[0]][1]
        for number, classes in enumerate(CLASSES):
            draw = np.random.default_rng([classes, number])
            picked = draw.choice(int(truth.max()) + 1, classes, replace=False)
            rows = np.isin(truth, picked)
            own = draw.permutation(classes)[np.unique(truth[rows], return_inverse=True)[1]]
            labels = np.where((own < classes // 2) & (draw.random(len(own)) < 0.5), own, -1)
            line: dict[str, object] = {"set": name, "classes": classes}
            scores: dict[str, dict[str, float]] = {"accuracy": {}, "hidden": {}, "neighbours": {}}
            for each in BACKBONES:
                seen = kept[each][0][rows]
                _, clusters = semi_kmeans(seen, labels, classes // 2, classes, 0)
                scores["accuracy"][each] = clustering_accuracy(own[labels < 0], clusters[labels < 0])
                scores["hidden"][each] = hidden_class_accuracy(seen, labels, 0) or 0.0
                scores["neighbours"][each] = neighbour_structure(seen, 0)
            best = max(BACKBONES, key=scores["accuracy"].__getitem__)
            for by in right:
                right[by] += max(BACKBONES, key=scores[by].__getitem__) == best
            lines.append(line | {by: {k: round(v, 3) for k, v in own.items()} for by, own in scores.items()})
            print(json.dumps(lines[-1]), flush=True)
            write_json(asked.out, {"draws": lines, "right": right})
    print(
        f"the better of both by hidden classes: {right['hidden']} of {len(lines)}; by neighbours: {right['neighbours']}"
    )


if __name__ == "__main__":
    main()
