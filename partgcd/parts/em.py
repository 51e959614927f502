"""Expectation maximisation of the part mixtures of all classes at once (Eq. 7-8).

Patches arrive flat, class after class. Classes of similar size form a group that fits a memory budget; a
group is cut into tiles of at most `TILE` patches, stored as [x, x^2] around its class mean. All iterations of
a group are done before the next one starts. A class too large for the budget passes through it tile by tile,
so memory does not depend on the longest class.

Sums are around the class mean, where float32 has the digits that a variance needs; what is added up over the
batches of a large class, and the log-likelihood, is float64.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from partgcd.parts.exact import exact_products
from partgcd.parts.mixture import LOG_2PI, Mixture, initial_mixture

__all__ = ["DEAD", "WEIGHT_FLOOR", "EMResult", "Mixture", "fit_mixtures", "fit_shared", "initial_mixture"]

TILE = 256
"""Most patches a tile: 256 x 2 x 384 floats are 768 KiB, half of a core's second-level cache."""

PADDING = 0.25
"""Largest share of padded rows a class may have in its group."""

WEIGHT_FLOOR = 1e-6
"""Smallest weight of a component. The weights are the best that keep it: likelihood still never falls."""

DEAD = 1e-3
"""A component that owns fewer patches than this keeps its mean and variance: its slot may be needed again."""

CPU_BUDGET = 3 * 2**22
GPU_BUDGET = 2**29


@dataclass(frozen=True)
class EMResult:
    """What a fit returns.

    Attributes:
        mixture: [C, K], on the patches' device.
        log_likelihood: [T, C] float64, on the CPU; row t is the mean log-likelihood a patch (nats) under the
            parameters that entered iteration t. A class that stopped earlier repeats its last value; a class
            without patches has nan.
        iterations_run: [C] int64, on the CPU; T is their largest.
    """

    mixture: Mixture
    log_likelihood: Tensor
    iterations_run: Tensor


@dataclass(frozen=True)
class _Group:
    """Classes fitted together: ``spans`` are (offset, size) of their patches; each has tiles x rows places."""

    classes: list[int]
    spans: list[tuple[int, int]]
    tiles: int
    rows: int


def _groups(sizes: list[int], bytes_a_patch: int, budget: int) -> Iterator[_Group]:
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + size)
    order = sorted((c for c, size in enumerate(sizes) if size), key=lambda c: -sizes[c])
    while order:
        tiles = math.ceil(sizes[order[0]] / TILE)
        rows = math.ceil(sizes[order[0]] / tiles)
        fit = max(1, budget // (tiles * rows * bytes_a_patch))
        smallest = (1.0 - PADDING) * tiles * rows
        classes = [c for c in order[:fit] if sizes[c] >= smallest] or order[:1]
        order = order[len(classes) :]
        yield _Group(classes, [(offsets[c], sizes[c]) for c in classes], tiles, rows)


def _stack(
    patches: Tensor, group: _Group, centre: Tensor, first: int, tiles: int, work: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Tiles first..first+tiles of each class as [G * tiles, rows, 2 d] = [x, x^2], and which rows are
    patches.

    They lie in ``work``. The mask [G * tiles, 1, rows] is None where no row is padding.
    """
    d, rows = patches.shape[1], group.rows
    z = work[: len(group.spans) * tiles * rows * 2 * d].view(len(group.spans), tiles * rows, 2 * d)
    filled = []
    for g, (offset, size) in enumerate(group.spans):
        begin, end = min(first * rows, size), min((first + tiles) * rows, size)
        m = end - begin
        x = z[g, :m, :d]
        torch.sub(patches[offset + begin : offset + end], centre[g], out=x)
        torch.mul(x, x, out=z[g, :m, d:])
        z[g, m:] = 0.0
        filled.append(m)
    mask = None
    if min(filled) < tiles * rows:
        count = torch.tensor(filled, device=z.device).view(-1, 1)
        mask = (torch.arange(tiles * rows, device=z.device) < count).view(-1, 1, rows)
    return z.view(-1, rows, 2 * d), mask


def _expect(
    z: Tensor, mask: Tensor | None, weight: Tensor, constant: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One pass over tiles: E step and the sums of the M step.

    Shape: z [G * T, rows, 2 d], weight [G, K, 2 d], constant [G, K] -> owned patches [G, K], sums of x and x^2
    [G, K, 2 d], log-likelihood [G] (float64); all summed over the tiles of a class.
    """
    groups, k, width = weight.shape
    total, rows, _ = z.shape
    tiles = total // groups
    weight = weight.unsqueeze(1).expand(groups, tiles, k, width).reshape(total, k, width)
    constant = constant.unsqueeze(1).expand(groups, tiles, k).reshape(total, k, 1)
    # components x patches, not patches x components: the softmax then runs along whole vectors of patches
    logits = torch.baddbmm(constant, weight, z.transpose(1, 2))
    share = torch.softmax(logits, dim=1)
    if mask is not None:
        share.mul_(mask)
    sums = torch.bmm(share, z)
    # log sum exp = largest term - log(its share); the largest share is at least 1/K, so this is stable
    log_likelihood = logits.amax(1).sub_(share.amax(1).log_())
    if mask is not None:
        log_likelihood.masked_fill_(~mask.squeeze(1), 0.0)
    return (
        share.view(groups, tiles, k, rows).sum((1, 3)),
        sums.view(groups, tiles, k, width).sum(1),
        log_likelihood.view(groups, -1).sum(1, dtype=torch.float64),
    )


def _coefficients(mixture: Mixture) -> tuple[Tensor, Tensor]:
    """The joint log-density as a product: logits = weight . [x, x^2] + constant."""
    d = mixture.dims
    precision = mixture.var.reciprocal()
    linear = mixture.mu * precision
    constant = mixture.log_pi - 0.5 * (
        d * LOG_2PI + mixture.var.log().sum(-1) + (linear * mixture.mu).sum(-1)
    )
    return torch.cat([linear, precision.mul_(-0.5)], dim=-1), constant


def _floored(pi: Tensor) -> Tensor:
    """The most likely component weights that are at least WEIGHT_FLOOR. Shape: [G, K] -> [G, K]."""
    small = pi < WEIGHT_FLOOR
    rest = torch.where(small, torch.zeros_like(pi), pi)
    scale = (1.0 - WEIGHT_FLOOR * small.sum(-1, keepdim=True)) / rest.sum(-1, keepdim=True)
    return torch.where(small, torch.full_like(pi, WEIGHT_FLOOR), rest * scale)


def _maximise(
    owned: Tensor,
    sums: Tensor,
    n: Tensor,
    old: Mixture,
    floor: Tensor,
    prior: Mixture | None,
    strength: float,
) -> Mixture:
    """M step, or with a prior its MAP adaptation (Reynolds et al. 2000). All around the class centre."""
    d = old.dims
    moments = sums / owned.clamp_min(DEAD).unsqueeze(-1)
    pi = owned / n
    mu = moments[..., :d]
    var = torch.addcmul(moments[..., d:], mu, mu, value=-1.0)
    if bool((owned < (n * WEIGHT_FLOOR).clamp_min(DEAD)).any()):
        alive = (owned >= DEAD).unsqueeze(-1)
        mu, var, pi = torch.where(alive, mu, old.mu), torch.where(alive, var, old.var), _floored(pi)
    if prior is not None and strength > 0.0:
        own = (owned / (owned + strength)).unsqueeze(-1)
        gap = mu - prior.mu
        mu = prior.mu + own * gap
        # = own E[x^2] + (1 - own) (var0 + mu0^2) - mu^2, without its cancellation
        var = prior.var + own * (var - prior.var) + own * (1.0 - own) * gap.square()
        pi0 = prior.log_pi.exp()
        pi = pi0 + own.squeeze(-1) * (pi - pi0)
        pi = pi / pi.sum(-1, keepdim=True)
    return Mixture(pi.log(), mu, torch.maximum(var, floor))


def _shifted(mixture: Mixture, centre: Tensor, classes: int) -> Mixture:
    """The mixture around each class's centre, in the precision of the fit. Shape: centre [G, d]."""
    dtype = centre.dtype
    mu = (mixture.mu.double() - centre.double().unsqueeze(1)).to(dtype)
    return Mixture(mixture.log_pi.to(dtype).expand(classes, -1), mu, mixture.var.to(dtype).expand_as(mu))


def _fit_group(
    patches: Tensor,
    group: _Group,
    start: Mixture,
    iterations: int,
    tolerance: float,
    floor: Tensor,
    prior: Mixture | None,
    strength: float,
    work: Tensor,
) -> tuple[Mixture, Tensor, Tensor]:
    """Fits the classes of a group. Returns their mixtures [G], log-likelihoods [T, G], iterations run [G]."""
    classes, d = len(group.spans), patches.shape[1]
    batch = min(group.tiles, max(1, work.numel() // (classes * group.rows * 2 * d)))
    centre = torch.stack([patches[o : o + size].mean(0, dtype=work.dtype) for o, size in group.spans])
    n = torch.tensor([[size] for _, size in group.spans], dtype=work.dtype, device=work.device)
    mixture = _shifted(start, centre, classes)
    if prior is not None:
        prior = _shifted(prior, centre, classes)
    whole = _stack(patches, group, centre, 0, batch, work) if batch == group.tiles else None
    active = torch.ones(classes, dtype=torch.bool, device=work.device)
    all_active = True
    run = torch.zeros(classes, dtype=torch.int64, device=work.device)
    history: list[Tensor] = []
    for _ in range(iterations):
        weight, constant = _coefficients(mixture)
        if whole is not None:
            owned, sums, total = _expect(*whole, weight, constant)
        else:
            owned, sums, total = (torch.zeros((), dtype=torch.float64, device=work.device) for _ in range(3))
            for first in range(0, group.tiles, batch):
                tiles = _stack(patches, group, centre, first, min(batch, group.tiles - first), work)
                more = _expect(*tiles, weight, constant)
                owned, sums, total = owned + more[0].double(), sums + more[1].double(), total + more[2]
            owned, sums = owned.to(work.dtype), sums.to(work.dtype)
        log_likelihood = total / n.squeeze(1)
        new = _maximise(owned, sums, n, mixture, floor, prior, strength)
        if not all_active:
            log_likelihood = torch.where(active, log_likelihood, history[-1])
            new = Mixture(
                torch.where(active.unsqueeze(-1), new.log_pi, mixture.log_pi),
                torch.where(active.view(-1, 1, 1), new.mu, mixture.mu),
                torch.where(active.view(-1, 1, 1), new.var, mixture.var),
            )
        mixture = new
        run += active
        if history:
            active = active & (log_likelihood - history[-1] >= tolerance)
            all_active = bool(active.all())
        history.append(log_likelihood)
        if not all_active and not bool(active.any()):
            break
    mu = mixture.mu.double() + centre.double().unsqueeze(1)
    return Mixture(mixture.log_pi, mu, mixture.var), torch.stack(history), run


@torch.no_grad()
def fit_mixtures(
    patches: Tensor,
    sizes: Tensor,
    start: Mixture,
    iterations: int,
    tolerance: float,
    variance_floor: Tensor | float,
    prior: Mixture | None = None,
    prior_strength: float = 0.0,
    memory_budget: int | None = None,
) -> EMResult:
    """Fits one mixture of diagonal Gaussians to the patches of each class (Eq. 8), all classes in one call.

    Component k of a class starts from component k of ``start`` and stays in its slot. The variance of an
    M step is clamped to the floor, which is the constrained optimum: without a prior and from a start that
    respects both floors, the log-likelihood never falls. A component that loses its patches keeps mean and
    variance and the weight `WEIGHT_FLOOR`. A class without patches keeps its start.

    With a prior, each M step is drawn towards it: a component that owns n_k patches keeps the share
    n_k / (n_k + r) of its own weight, mean and second moment (MAP adaptation with relevance factor r).

    Args:
        patches: [M, d] float, the classes' filtered patches one class after the other. Half precision is
            computed in float32, float64 in float64.
        sizes: [C] integers, patches of each class; they sum to M.
        start: [C, K].
        iterations: most iterations, at least 1.
        tolerance: a class stops when its mean log-likelihood a patch gains less than this many nats.
        variance_floor: smallest variance, above 0; a number or [d].
        prior: [K] or [C, K], e.g. the mixture shared by all classes.
        prior_strength: relevance factor r in patches, 0 (no prior, the paper) or more; infinity is the prior.
        memory_budget: bytes of working memory for patches (a thread); None is 12 MiB (CPU) or 512 MiB (GPU).

    Raises:
        ValueError: shapes or values that contradict each other.
    """
    m, d = patches.shape
    counts = [int(size) for size in sizes.tolist()]
    if start.log_pi.dim() != 2 or start.log_pi.shape[0] != len(counts) or start.dims != d:
        raise ValueError(
            f"start holds mixtures {list(start.mu.shape)} for {len(counts)} classes of {d} dimensions"
        )
    if sum(counts) != m or min(counts, default=0) < 0:
        raise ValueError(f"the class sizes sum to {sum(counts)}, but there are {m} patches")
    dtype = torch.promote_types(patches.dtype, torch.float32)
    floor = torch.as_tensor(variance_floor, dtype=dtype, device=patches.device)
    if not bool((floor > 0).all()):
        raise ValueError("the variance floor must be above 0")
    if iterations < 1:
        raise ValueError(f"iterations is {iterations}: at least 1")
    if prior_strength < 0 or (prior_strength > 0 and prior is None):
        raise ValueError(f"prior_strength is {prior_strength}: 0 without a prior, 0 or more with one")
    if memory_budget is None:
        memory_budget = CPU_BUDGET if patches.device.type == "cpu" else GPU_BUDGET

    bytes_a_patch = 2 * d * torch.finfo(dtype).bits // 8
    groups = list(_groups(counts, bytes_a_patch, memory_budget))

    room = memory_budget // bytes_a_patch
    places = max((len(g.classes) * max(g.rows, min(g.tiles * g.rows, room)) for g in groups), default=0)
    kept = threading.local()

    def fit(group: _Group) -> tuple[Mixture, Tensor, Tensor]:
        classes = torch.tensor(group.classes, device=start.mu.device)
        own_prior = prior if prior is None or prior.log_pi.dim() == 1 else _rows(prior, classes)
        if not hasattr(kept, "work"):  # fresh pages for every group would cost more than the arithmetic does
            kept.work = torch.empty(places * 2 * d, dtype=dtype, device=patches.device)
        with torch.no_grad():  # not inherited by threads
            return _fit_group(
                patches,
                group,
                _rows(start, classes),
                iterations,
                tolerance,
                floor,
                own_prior,
                prior_strength,
                kept.work,
            )

    log_pi, mu, var = start.log_pi.clone(), start.mu.clone(), start.var.clone()
    run = torch.zeros(len(counts), dtype=torch.int64)
    log_likelihood = torch.full((iterations, len(counts)), math.nan, dtype=torch.float64)
    with exact_products(patches.device):
        for group, (fitted, likelihoods, used) in zip(
            groups, _each(fit, groups, patches.device), strict=True
        ):
            c = torch.tensor(group.classes, device=mu.device)
            log_pi[c], mu[c], var[c] = fitted.log_pi.to(log_pi), fitted.mu.to(mu), fitted.var.to(var)
            run[group.classes] = used.cpu()
            likelihoods = likelihoods.cpu()
            log_likelihood[: len(likelihoods), group.classes] = likelihoods
            log_likelihood[len(likelihoods) :, group.classes] = likelihoods[-1]
    last = max(1, int(run.max())) if len(counts) else 0
    return EMResult(Mixture(log_pi, mu, var), log_likelihood[:last], run)


def _each(
    fit: Callable[[_Group], tuple[Mixture, Tensor, Tensor]], groups: list[_Group], device: torch.device
) -> list[tuple[Mixture, Tensor, Tensor]]:
    """Fits every group. On a CPU, each thread takes whole groups and works alone on them.

    The products are too thin to be shared between threads: waiting for each other would cost more than they do.
    It also makes the outcome independent of the number of threads wherever there are several groups.
    """
    threads = min(torch.get_num_threads(), len(groups)) if device.type == "cpu" else 1
    if threads < 2:
        return [fit(group) for group in groups]
    before = torch.get_num_threads()
    try:
        # a thread's call concerns that thread and those that torch has not met yet
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(fit, groups))
    finally:
        torch.set_num_threads(before)


def _rows(mixture: Mixture, classes: Tensor) -> Mixture:
    return Mixture(mixture.log_pi[classes], mixture.mu[classes], mixture.var[classes])


def fit_shared(
    patches: Tensor,
    components: int,
    seed: int,
    iterations: int,
    tolerance: float,
    variance_floor: Tensor | float,
    start: Mixture | None = None,
) -> Mixture:
    """The mixture of all patches together, which gives every class the same meaning of a slot.

    Shape: patches [M, d] -> Mixture [K]. A start [K] (the last epoch's) replaces the k-means start.

    Raises:
        ValueError: there are fewer patches than components.
    """
    first = start if start is not None else initial_mixture(patches, components, seed, variance_floor)
    size = torch.tensor([len(patches)])
    fitted = fit_mixtures(patches, size, first.repeat(1), iterations, tolerance, variance_floor).mixture
    return Mixture(fitted.log_pi[0], fitted.mu[0], fitted.var[0])
