"""Candidate images of every class, from which its part mixture is fitted (Eqs. 4 and 6).

Old classes use exactly their labelled images; new classes retrieve theirs among the unlabelled ones.
Letters: N images, C classes of which the first ``old`` are old ones, D dimensions of the class token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from partgcd.config.errors import UserError
from partgcd.run.world import ALONE, Ranks, share_of

Mode = Literal["prediction", "sinkhorn", "prototypes", "calibrated"]
Search = Literal["auto", "faiss", "dense"]

CHUNK = 8192  # images of one matrix product
BLOCK = 64  # classes scored at once by the dense search
SLACK = 16  # images fetched beyond the wanted number, so that rounding in a search decides nothing


@dataclass(frozen=True)
class Candidates:
    """Pairs of image and class, ordered by class; within a new class the best image comes first.

    An image is a candidate of every new class that ranks it high enough.
    """

    rows: Tensor  # [M] int64
    classes: Tensor  # [M] int64


class Scores(NamedTuple):
    """What candidates are ranked by, of this rank's share of the images (`share_of`).

    Shape:
        features: [N, D] class tokens; log_p: [N, C] log of the model's prediction; q: [N, C] the adjusted one;
        prototypes: [C, D], None where the mode needs none.
    """

    features: Tensor
    log_p: Tensor
    q: Tensor
    prototypes: Tensor | None


@dataclass(frozen=True)
class Wanted:
    """How candidates are ranked, and how many a new class gets (`candidates_per_class`)."""

    mode: Mode
    count: int
    temperature: float = 1.0
    search: Search = "auto"


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
    faiss: Any, features: Tensor, log_norm: Tensor, queries: Tensor, count: int
) -> list[Tensor]:
    """The rows that FAISS's flat inner-product search returns for every query."""
    vectors = _augmented(features, log_norm)
    wanted = _augmented(queries, -torch.ones_like(queries[:, 0]))
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return [torch.from_numpy(row).to(features.device) for row in index.search(wanted, count)[1]]


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
) -> tuple[list[Tensor], list[Tensor]]:
    """The images most probably of each wanted class under p~ = softmax(W~^T f / temperature) (Eq. 6).

    A search, by FAISS or dense, only makes a shortlist a few images longer than wanted; the rank in it is
    computed once more in float64, with ties going to the smaller row, so that both searches give one answer.

    Shape: features [N, D], L2-normalised inside; prototypes [C, D], used as they are; wanted [n] classes
    -> n tensors of min(count, N) int64 rows, best first; and as many of their scores, float64.

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
        return [nothing for _ in wanted], [nothing.double() for _ in wanted]
    unit = F.normalize(features.float(), dim=1)
    scaled = prototypes.float() / temperature
    log_norm = torch.cat([(rows @ scaled.T).logsumexp(dim=1) for rows in torch.split(unit, CHUNK)])
    queries = scaled[wanted]
    longer = min(len(unit), count + SLACK)
    if faiss is None:
        shortlists = _dense_shortlist(unit, log_norm, queries, longer)
    else:
        shortlists = _faiss_shortlist(faiss, unit, log_norm, queries, longer)
    best: list[Tensor] = []
    scores: list[Tensor] = []
    for rows, query in zip(shortlists, queries, strict=True):
        ordered = rows.sort().values
        # A product and a sum, not a matrix product: equal images get equal bits wherever they stand.
        exact = (unit[ordered].double() * query.double()).sum(dim=1) - log_norm[ordered].double()
        top = arg_top(exact[:, None], count)[0]
        best.append(ordered[top])
        scores.append(exact[top])
    return best, scores


def merge_ranked(
    rows: list[Tensor], scores: list[Tensor], count: int, first: int, world: Ranks
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
    scores: Scores, labels: Tensor, old: int, wanted: Wanted, world: Ranks = ALONE
) -> Candidates:
    """The candidates of every class: labelled images for old ones, the best unlabelled ones for new ones.

    The mode says what ranks the unlabelled images (the paper's ablation of candidate selection): 'prediction'
    the model's prediction (Eq. 4); 'sinkhorn' the adjusted prediction; 'prototypes' and 'calibrated' the
    nearness to class prototypes (Eq. 6) that were averaged under the plain or under the adjusted prediction
    (Eq. 5). Only the last two search, and only they need prototypes; the first two read their scores off.
    Where no image is labelled every class is new. The number wanted is cut to that of unlabelled images.

    Shape:
        labels: [N] int64 of all images, -1 for an unlabelled one; the answer is of all images, too.

    Raises:
        ValueError: prototypes are needed and missing.
        UserError: as `retrieve` does.
    """
    labelled = (labels >= 0).nonzero().squeeze(1)
    labelled = labelled[labels[labelled].sort(stable=True).indices]
    unlabelled = (labels < 0).nonzero().squeeze(1)
    share = share_of(len(labels), world)
    here = unlabelled[(unlabelled >= share.start) & (unlabelled < share.stop)] - share.start
    new = torch.arange(old if len(labelled) else 0, scores.log_p.shape[1], device=labels.device)
    if wanted.mode == "prediction" or wanted.mode == "sinkhorn":
        likely = (scores.log_p if wanted.mode == "prediction" else scores.q)[here][:, new]
        best = list(arg_top(likely, wanted.count))
        reached = [likely[rows, column] for column, rows in enumerate(best)]
    elif scores.prototypes is None:
        raise ValueError(f"candidates by {wanted.mode!r} need class prototypes")
    else:
        best, reached = retrieve(
            scores.features[here], scores.prototypes, new, wanted.count, wanted.temperature, wanted.search
        )
    if world.size > 1 and len(new):
        before = int((unlabelled < share.start).sum())
        best = merge_ranked(best, reached, wanted.count, before, world)
    sizes = torch.tensor([len(rows) for rows in best], dtype=torch.int64, device=labels.device)
    return Candidates(
        rows=torch.cat([labelled, *(unlabelled[rows] for rows in best)]),
        classes=torch.cat([labels[labelled], new.repeat_interleave(sizes)]),
    )
