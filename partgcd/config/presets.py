"""Named sets of overrides of the settings tree. ``default`` is the tree's own defaults."""

from __future__ import annotations

# The paper's literal setting (its implementation details), for those who have its 200 epochs and a GPU.
_PAPER: dict[str, object] = {
    "train.epochs": 200,
    "train.batch_size": 128,
    "train.lr": 0.1,
    "train.block_lr": 1.0,
    "train.warmup": 0.0,
    "train.view_pool": 0,
    "loss.mean_entropy_weight": 1.0,
    "loss.unsupervised_temperature": 0.07,
    "loss.supervised_temperature": 1.0,
    "parts.count": "auto",
    "parts.projection": 0,
    "parts.alpha": 2.0,
    "parts.pdr_positive_in_denominator": False,
    "parts.pdr_temperature": 1.0,
    "parts.foreground_pooling": False,
    "parts.prior_strength": 0.0,
    "parts.assignment_of_labelled": "label",
    "parts.adapter_start": "random",
    "discovery.prototype_start": "random",
    "discovery.prototype_refits": [],
    "discovery.marginal_power": 0.0,
    "discovery.fusion_temperature": 1.0,
}

PRESETS: dict[str, dict[str, object]] = {
    "default": {},
    "paper": _PAPER,
    # The paper's weights for data that is not fine-grained: a lighter part branch, a shorter warm-up.
    "paper-generic": {**_PAPER, "parts.alpha": 1.0, "parts.alpha_warmup": 0.05},
    # Minutes on a laptop, to see that a folder works before a long run.
    "quick": {
        "train.epochs": 8,
        "train.view_pool": 2,
        "data.image_size": 154,
        "loss.projector_hidden": 512,
        "parts.count_max": 6,
        "parts.silhouette_patches": 500,
    },
}
