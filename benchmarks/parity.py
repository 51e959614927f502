"""Do all ways to ask a model give the same answer? Torch, ONNX in several batches, embedded server, Ray Serve.

Over real photographs: the largest difference of any fused probability from the torch predictor's, and how often the
class differs where the class head's two best probabilities are further apart than 1e-4 (where they are not, rounding
decides whose mixture makes the parts, and two right answers can differ; such images are counted and left out).

    python benchmarks/parity.py PHOTOS RUN BUNDLE [--images 200] [--no-ray] [--out FILE]
"""

from __future__ import annotations

import argparse
import http.client
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch
from load import Server, embedded, on_ray, photos

from partgcd.discovery.predict import predict
from partgcd.disk.files import write_json
from partgcd.export.predictor import Answer, Predictor
from partgcd.export.source import open_source
from partgcd.run.folder import RunFolder

ALLOWED = 1e-4
BATCHES = (1, 2, 7, 32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/parity.json"))
    args = parser.parse_args()
    images = photos(args.photos, args.images)
    data = [each for _, each in images]
    predictor = Predictor.load(args.bundle)
    ids = [each.id for each in predictor.classes]
    expected, gap = _torch(args.run, predictor, data)
    sure = gap > ALLOWED
    found = {
        f"onnx, batch {batch}": _of(predictor.classify(data, len(ids), batch=batch), ids) for batch in BATCHES
    }
    starts = {"embedded server": embedded} | ({} if args.no_ray else {"ray serve": on_ray})
    for name, start in starts.items():
        server = start(args.bundle)
        try:
            found[name] = _over_http(server, images, ids)
        finally:
            server.stop()
    rows = {
        name: {
            "largest_difference": float(np.abs(values - expected)[sure].max()),
            "other_class": int((values.argmax(1) != expected.argmax(1))[sure].sum()),
        }
        for name, values in found.items()
    }
    backbone = predictor.manifest.backbone
    result: dict[str, Any] = {
        "backbone": backbone.name, "kind": backbone.kind, "image_size": predictor.image_size,
        "precision": predictor.manifest.graph.precision, "images": len(data), "left_out": int((~sure).sum()),
        "python": platform.python_version(), "against_torch": rows,
    }  # fmt: skip
    result["met"] = int((~sure).sum()) <= len(data) / 200 and all(
        row["largest_difference"] <= ALLOWED and row["other_class"] == 0 for row in rows.values()
    )
    known = json.loads(args.out.read_text()) if args.out.exists() else []
    known = [
        each
        for each in known
        if (each["backbone"], each["image_size"]) != (backbone.name, predictor.image_size)
    ]
    write_json(args.out, [*known, result])
    print(json.dumps(result, indent=1))


@torch.no_grad()
def _torch(run: Path, predictor: Predictor, data: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Fused probabilities [N, C] of the torch predictor, and the gap of the class head's two best [N]."""
    source = open_source(RunFolder.open(run))
    settings = source.settings
    fused, gaps = [], []
    for each in data:
        tokens = source.model.backbone.trunk(torch.from_numpy(predictor.prepare(each)[None]))
        found = predict(source.model, source.parts, tokens, settings.parts, settings.discovery)
        best = found.overall.topk(2, dim=1).values
        fused.append(found.fused)
        gaps.append(best[:, 0] - best[:, 1])
    return torch.cat(fused).numpy(), torch.cat(gaps).numpy()


def _of(answers: list[Any], ids: list[str]) -> np.ndarray:
    """Probabilities [N, C] in the order of ``ids``."""
    values = np.zeros((len(answers), len(ids)))
    for row, answer in enumerate(answers):
        assert isinstance(answer, Answer)
        for choice in answer.top:
            values[row, ids.index(choice.id)] = choice.probability
    return values


def _over_http(server: Server, images: list[tuple[str, bytes]], ids: list[str]) -> np.ndarray:
    values = np.zeros((len(images), len(ids)))
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    for row, (kind, data) in enumerate(images):
        connection.request("POST", f"/v1/classify?top_k={len(ids)}", data, {"Content-Type": kind})
        answer = connection.getresponse()
        told = json.loads(answer.read())
        assert answer.status == 200, told
        for choice in told["results"][0]["top"]:
            values[row, ids.index(choice["id"])] = choice["confidence"]
    connection.close()
    return values


if __name__ == "__main__":
    main()
