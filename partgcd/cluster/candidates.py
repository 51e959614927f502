"""Candidate images of every class, from which its part mixture is fitted (Eqs. 4 and 6).

Old classes use exactly their labelled images; new classes retrieve theirs among the unlabelled ones.
Letters: N images, C classes of which the first ``old`` are old ones, D dimensions of the class token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from partgcd.config.errors import UserError
from partgcd.run.world import World, share_of

Mode = Literal["prediction", "sinkhorn", "prototypes", "calibrated"]
Search = Literal["auto", "faiss", "dense"]

CHUNK = 8192  # images of one matrix product
BLOCK = 64  # classes scored at once by the dense search
SLACK = 16  # images fetched beyond the wanted number, so that rounding in a search decides nothing
RECALL_CLASSES = 16  # classes on which an approximate index is compared with the flat one


@dataclass(frozen=True)
class Candidates:
    """Pairs of image and class, ordered by class; within a new class the best image comes first.

    An image is a candidate of every new class that ranks it high enough. ``recall`` is the share of the exact
    candidates that the search found: 1 unless an approximate index was asked for.
    """

    rows: Tensor  # [M] int64
    classes: Tensor  # [M] int64
    recall: float = 1.0


def candidates_per_class(labels: Tensor, old: int, classes: int, gamma: float) -> int:
    """N_s, the candidates of a new class: gamma * |D_l| / |Y_l|, rounded; N / C where nothing is labelled.

    Shape: labels [N] int64, -1 for an unlabelled image.
    """
    labelled = int((labels >= 0).sum())
    exact = gamma * labelled / old if labelled else len(labels) / classes
    return max(1, math.floor(exact + 0.5))


def arg_top(scores: Tensor, count: int) -> Tensor:
    """The rows of the ``count`` highest scores of every column, best first; of equal ones the smaller row.

    Shape: scores [N, n], no NaN -> [n, min(count, N)] int64.
    """
    count = min(count, len(scores))
    if not count:
        return torch.empty(scores.shape[1], 0, dtype=torch.int64, device=scores.device)
    # topk alone leaves open which of equal scores it returns.
    last = scores.topk(count, dim=0).values[-1]
    above = scores > last
    equal = scores == last
    kept = above | (equal & (equal.cumsum(dim=0) <= count - above.sum(dim=0)))
    rows = kept.T.nonzero()[:, 1].view(scores.shape[1], count)
    order = scores.T.gather(1, rows).sort(dim=1, descending=True, stable=True).indices
    return rows.gather(1, order)


def _import_faiss() -> Any | None:
    try:
        import faiss
    except ImportError:
        return None
    return faiss


def _augmented(features: Tensor, log_norm: Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    """[f ; -logsumexp]: its inner product with [W~_c / tau ; 1] is log p~_c itself."""
    joined = torch.cat([features, -log_norm[:, None]], dim=1).cpu()
    return np.ascontiguousarray(joined.numpy(), dtype=np.float32)


def _faiss_shortlist(
    faiss: Any, features: Tensor, log_norm: Tensor, queries: Tensor, count: int, approximate: bool
) -> tuple[list[Tensor], float]:
    """The rows a FAISS inner-product search returns for every query, and the recall of that search."""
    vectors = _augmented(features, log_norm)
    wanted = _augmented(queries, -torch.ones_like(queries[:, 0]))
    flat = faiss.IndexFlatIP(vectors.shape[1])
    index = flat
    if approximate:
        # About sqrt(N) cells, an eighth of them visited.
        cells = max(1, math.isqrt(len(vectors)))
        index = faiss.IndexIVFFlat(
            faiss.IndexFlatIP(vectors.shape[1]), vectors.shape[1], cells, faiss.METRIC_INNER_PRODUCT
        )
        index.train(vectors)
        index.nprobe = max(1, cells // 8)
    index.add(vectors)
    found = index.search(wanted, count)[1]
    recall = 1.0
    if approximate:
        sample = np.linspace(0, len(wanted) - 1, min(RECALL_CLASSES, len(wanted))).astype(np.int64)
        flat.add(vectors)
        truth = flat.search(wanted[sample], count)[1]
        hits = sum(len(np.intersect1d(a, b)) for a, b in zip(found[sample], truth, strict=True))
        recall = hits / truth.size
    # -1 fills up where the visited cells held fewer vectors than asked for.
    return [torch.from_numpy(row[row >= 0]).to(features.device) for row in found], recall


def _dense_shortlist(features: Tensor, log_norm: Tensor, queries: Tensor, count: int) -> list[Tensor]:
    """The same by scoring every pair, a block of classes at a time."""
    rows: list[Tensor] = []
    for block in torch.split(queries, BLOCK):
        rows.extend(arg_top(features @ block.T - log_norm[:, None], count))
    return rows


def retrieve(
    features: Tensor,
    prototypes: Tensor,
    wanted: Tensor,
    count: int,
    temperature: float = 1.0,
    search: Search = "auto",
    approximate_above: int | None = None,
) -> tuple[list[Tensor], list[Tensor], float]:
    """The images most probably of each wanted class under p~ = softmax(W~^T f / temperature) (Eq. 6).

    A search, by FAISS or dense, only makes a shortlist a few images longer than wanted; the rank in it is
    computed once more in float64, with ties going to the smaller row, so that both searches give one answer.
    ``approximate_above`` allows an inverted-file index when there are more images than that (None: never). It
    needs FAISS; its recall, measured against the flat index on a few classes, is the second result.

    Shape: features [N, D], L2-normalised inside; prototypes [C, D], used as they are; wanted [n] classes
    -> n tensors of min(count, N) int64 rows, best first; as many of their scores, float64; and the recall, 1.0
    for an exact search.

    Raises UserError where ``search`` is 'faiss' and the package is missing ('auto' then searches densely).
    """
    faiss = None if search == "dense" else _import_faiss()
    if faiss is None and search == "faiss":
        raise UserError(
            "parts.search is 'faiss' but FAISS is not installed: pip install 'partgcd[cpu]' "
            "(or 'partgcd[gpu]'), or set parts.search=auto"
        )
    if not len(wanted) or not len(features):
        nothing = torch.empty(0, dtype=torch.int64, device=features.device)
        return [nothing for _ in wanted], [nothing.double() for _ in wanted], 1.0
    unit = F.normalize(features.float(), dim=1)
    scaled = prototypes.float() / temperature
    log_norm = torch.cat([(rows @ scaled.T).logsumexp(dim=1) for rows in torch.split(unit, CHUNK)])
    queries = scaled[wanted]
    longer = min(len(unit), count + SLACK)
    recall = 1.0
    if faiss is None:
        shortlists = _dense_shortlist(unit, log_norm, queries, longer)
    else:
        approximate = approximate_above is not None and len(unit) > approximate_above
        shortlists, recall = _faiss_shortlist(faiss, unit, log_norm, queries, longer, approximate)
    best: list[Tensor] = []
    scores: list[Tensor] = []
    for rows, query in zip(shortlists, queries, strict=True):
        ordered = rows.sort().values
        # A product and a sum, not a matrix product: equal images get equal bits wherever they stand.
        exact = (unit[ordered].double() * query.double()).sum(dim=1) - log_norm[ordered].double()
        top = arg_top(exact[:, None], count)[0]
        best.append(ordered[top])
        scores.append(exact[top])
    return best, scores, recall


def merge_ranked(
    rows: list[Tensor], scores: list[Tensor], count: int, first: int, world: World
) -> list[Tensor]:
    """The best of what every rank found among its own images; of equal scores the smaller row wins.

    Args:
        rows, scores: per class, this rank's best rows, counted from its first image, and their scores.
        count: how many of a class are wanted of all ranks together.
        first: row of this rank's first image.

    Returns:
        per class, up to ``count`` rows of the whole, best first.
    """
    sizes = torch.tensor([len(each) for each in rows], dtype=torch.int64, device=rows[0].device)
    owner = torch.arange(len(rows), device=sizes.device).repeat_interleave(sizes)
    row, score = world.all_gather(torch.cat(rows) + first), world.all_gather(torch.cat(scores).double())
    owner = world.all_gather(owner)
    order = row.argsort(stable=True)
    order = order[score[order].argsort(descending=True, stable=True)]
    order = order[owner[order].argsort(stable=True)]
    ends = torch.bincount(owner, minlength=len(rows)).tolist()
    return [each[:count] for each in torch.split(row[order], ends)]


def select_candidates(
    mode: Mode,
    features: Tensor,
    log_p: Tensor,
    q: Tensor,
    prototypes: Tensor | None,
    labels: Tensor,
    old: int,
    count: int,
    temperature: float = 1.0,
    search: Search = "auto",
    approximate_above: int | None = None,
    world: World | None = None,
) -> Candidates:
    """The candidates of every class: labelled images for old ones, the top ``count`` unlabelled for new ones.

    ``mode`` says what ranks the unlabelled images (the paper's ablation of candidate selection): 'prediction'
    the model's prediction (Eq. 4); 'sinkhorn' the adjusted prediction; 'prototypes' and 'calibrated' the
    nearness to class prototypes (Eq. 6) that were averaged under the plain or under the adjusted prediction
    (Eq. 5). Only the last two search, and only they need ``prototypes``; the first two read their scores off.
    Where no image is labelled every class is new. ``count`` is `candidates_per_class`, cut here to the number
    of unlabelled images.

    In a ``world`` of many ranks ``features``, ``log_p`` and ``q`` hold this rank's share of the images alone
    (`share_of`); the answer is of all.

    Shape: features [N, D] class tokens; log_p [N, C] log of the model's prediction; q [N, C] the adjusted
    prediction; prototypes [C, D]; labels [N] int64, -1 for an unlabelled image, always of all images.

    Raises ValueError where prototypes are needed and missing, UserError as `retrieve` does.
    """
    labelled = (labels >= 0).nonzero().squeeze(1)
    labelled = labelled[labels[labelled].sort(stable=True).indices]
    unlabelled = (labels < 0).nonzero().squeeze(1)
    share = share_of(len(labels), world)
    here = unlabelled[(unlabelled >= share.start) & (unlabelled < share.stop)] - share.start
    new = torch.arange(old if len(labelled) else 0, log_p.shape[1], device=labels.device)
    recall = 1.0
    if mode == "prediction" or mode == "sinkhorn":
        told = (log_p if mode == "prediction" else q)[here][:, new]
        found = list(arg_top(told, count))
        scores = [told[rows, column] for column, rows in enumerate(found)]
    elif prototypes is None:
        raise ValueError(f"candidates by {mode!r} need class prototypes")
    else:
        found, scores, recall = retrieve(
            features[here], prototypes, new, count, temperature, search, approximate_above
        )
    if world is not None and world.size > 1 and len(new):
        before = int((unlabelled < share.start).sum())
        found = merge_ranked(found, scores, count, before, world)
        recall = sum(world.all_gather_object(recall)) / world.size
    sizes = torch.tensor([len(rows) for rows in found], dtype=torch.int64, device=labels.device)
    return Candidates(
        rows=torch.cat([labelled, *(unlabelled[rows] for rows in found)]),
        classes=torch.cat([labels[labelled], new.repeat_interleave(sizes)]),
        recall=recall,
    )
