"""Seconds of the batched EM against scikit-learn's GaussianMixture, one class after the other.

    python benchmarks/mixtures.py --out mixtures.json

Both sides fit the same float32 patches of every class from the same start for the same number of iterations.
scikit-learn is given weights, means and precisions, so that its k-means start is not counted; the last line
shows it as people call it, with that start. Rounds are interleaved and the best of each side counts.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import warnings
from pathlib import Path

import numpy as np
import sklearn
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from partgcd.parts.em import Mixture, fit_mixtures

Floats = NDArray[np.float32]
FLOOR = 1e-6
TOLERANCE = 1e-30


def synthetic(classes: int, patches: int, dims: int, parts: int, seed: int) -> tuple[Floats, Floats]:
    """Patches [C, n, d] of overlapping blobs, on which EM goes on for long, and starts [C, K, d]."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((classes, parts, dims), dtype=np.float32) * 0.15
    part = rng.integers(parts, size=(classes, patches))
    x = rng.standard_normal((classes, patches, dims), dtype=np.float32)
    x += np.take_along_axis(centres, part[..., None], axis=1)
    return x, x[:, :parts].copy()


def ours(x: Floats, starts: Floats, iterations: int) -> tuple[float, Mixture, int]:
    classes, patches, dims = x.shape
    parts = starts.shape[1]
    begin = time.perf_counter()
    start = Mixture(
        torch.full((classes, parts), -float(np.log(parts))),
        torch.from_numpy(starts),
        torch.ones(classes, parts, dims),
    )
    sizes = torch.full((classes,), patches)
    result = fit_mixtures(torch.from_numpy(x).view(-1, dims), sizes, start, iterations, TOLERANCE, FLOOR)
    return time.perf_counter() - begin, result.mixture, int(result.iterations_run.min())


def theirs(
    x: Floats, starts: Floats, iterations: int, default_start: bool
) -> tuple[float, list[GaussianMixture]]:
    parts, dims = starts.shape[1:]
    models = []
    begin = time.perf_counter()
    for patches, means in zip(x, starts, strict=True):
        given = (
            {}
            if default_start
            else {
                "weights_init": np.full(parts, 1 / parts, dtype=np.float32),
                "means_init": means,
                "precisions_init": np.ones((parts, dims), dtype=np.float32),
            }
        )
        model = GaussianMixture(
            parts,
            covariance_type="diag",
            tol=TOLERANCE,
            reg_covar=FLOOR,
            max_iter=iterations,
            random_state=0,
            **given,
        )
        models.append(model.fit(patches))
    return time.perf_counter() - begin, models


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--patches", type=int, default=1000, help="patches a class")
    parser.add_argument("--dims", type=int, default=384)
    parser.add_argument("--parts", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    warnings.filterwarnings(
        "ignore", category=ConvergenceWarning
    )  # a fixed number of iterations is the point
    x, starts = synthetic(args.classes, args.patches, args.dims, args.parts, seed=0)
    seconds: dict[str, list[float]] = {"batched": [], "sklearn": [], "sklearn_default_start": []}
    with threadpool_limits(args.threads):
        ours(x[:2], starts[:2], 2)
        theirs(x[:2], starts[:2], 2, default_start=False)
        for _ in range(args.rounds):
            mine, mixture, run = ours(x, starts, args.iterations)
            loop, models = theirs(x, starts, args.iterations, default_start=False)
            seconds["batched"].append(mine)
            seconds["sklearn"].append(loop)
            seconds["sklearn_default_start"].append(theirs(x, starts, args.iterations, default_start=True)[0])
    iterations = {run, *(model.n_iter_ for model in models)}
    if iterations != {args.iterations}:
        raise SystemExit(
            f"a side stopped early: iterations run {sorted(iterations)}, wanted {args.iterations}"
        )
    gap = float(np.abs(mixture.mu.numpy() - np.stack([model.means_ for model in models])).max())
    best = {name: min(values) for name, values in seconds.items()}
    figures = {
        "classes": args.classes,
        "patches_a_class": args.patches,
        "dims": args.dims,
        "parts": args.parts,
        "iterations": args.iterations,
        "threads": args.threads,
        "seconds": seconds,
        "best_seconds": best,
        "ratio": best["sklearn"] / best["batched"],
        "ratio_default_start": best["sklearn_default_start"] / best["batched"],
        "largest_gap_of_means": gap,
        "sklearn_dtype": str(models[0].means_.dtype),
        "versions": {
            "torch": torch.__version__,
            "sklearn": sklearn.__version__,
            "python": platform.python_version(),
        },
    }
    if args.out is not None:
        args.out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(
        f"{args.classes} classes x {args.patches} patches x {args.dims} dims, {args.parts} parts, "
        f"{args.iterations} iterations, {args.threads} threads, best of {args.rounds}"
    )
    print(f"batched EM                     {best['batched']:7.3f} s")
    print(
        f"scikit-learn, same start       {best['sklearn']:7.3f} s   {figures['ratio']:.1f}x   "
        f"({figures['sklearn_dtype']}; means differ by at most {gap:.1e})"
    )
    print(
        f"scikit-learn, k-means start    {best['sklearn_default_start']:7.3f} s   "
        f"{figures['ratio_default_start']:.1f}x"
    )


if __name__ == "__main__":
    main()
