"""The settings of a run. Every field states its unit, its range and where its default comes from.

``METHOD`` below stands for the PartGCD paper and, where it is silent, for ``docs/method.md``.
Presets (`partgcd.config.presets`) are sets of overrides of this tree.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]


class Section(BaseModel):
    """A part of the tree: unknown keys are errors, values are frozen once checked, numbers are finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


class DataSettings(Section):
    image_size: int = Field(
        224, ge=32, le=1024, description="Side of the square crop the backbone sees, pixels."
    )
    crop_ratio: float = Field(
        0.875, gt=0.3, le=1.0, description="image_size / short side after the resize (paper: 0.875)."
    )
    max_broken: Share = Field(
        0.05, description="Share of unreadable images above which a run refuses to start."
    )
    max_megapixels: Positive = Field(
        100.0,
        le=10_000.0,
        description="Images with more pixels than this are quarantined undecoded (decompression bombs), 1e6 px.",
    )
    max_aspect: float = Field(
        4.0,
        ge=1.0,
        le=100.0,
        description="Long side / short side kept in the pixel store; longer images lose both ends.",
    )


class BackboneSettings(Section):
    name: str = Field(
        "auto",
        description="timm name, 'offline/vit-small', 'offline/efficientnet-lite0', or 'auto': "
        "DINO ViT-B/16 on a GPU; on a CPU the one of the offline backbones whose weights are here in which the photos "
        "sort best, offline/vit-small where there is nothing to compare.",
    )
    weights: Path | None = Field(
        None, description="Weights file (.safetensors, or .pth read with weights_only)."
    )
    random_weights: bool = Field(False, description="Start from random weights. For tests and timing only.")


class TrainSettings(Section):
    epochs: int = Field(20, ge=1, description="Passes over as many images as the catalog holds (paper: 200).")
    batch_size: int = Field(32, ge=2, description="Images a step, each in two views (paper: 128).")
    lr: Positive = Field(0.03, description="Peak SGD step size (paper: 0.1).")
    block_lr: Positive = Field(
        0.1,
        description="Step size of the backbone's block as a share of lr, which the heads have (paper: 1).",
    )
    warmup: Share = Field(
        0.15, description="Share of the run over which step sizes rise from nothing, step by step (paper: 0)."
    )
    lr_floor: Share = Field(
        1e-3, description="Last step size as a share of the peak, cosine per epoch (paper: 1e-3)."
    )
    momentum: float = Field(0.9, ge=0.0, lt=1.0, description="SGD momentum (paper: 0.9).")
    weight_decay: float = Field(5e-5, ge=0.0, description="On weight matrices only (paper: 5e-5).")
    view_pool: Annotated[int, Field(ge=0, le=64)] | Literal["auto"] = Field(
        "auto",
        description="Cached views an image; 0 draws fresh views for every step (exact, slower); "
        "'auto' is 0 on a GPU and 4 on a CPU.",
    )
    pool_refresh: Share = Field(
        0.0, description="Share of the cached views renewed at every epoch after the first."
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="Autocast of the backbone's matrix products; losses are always float32."
    )
    device: str = Field("auto", description="'auto', 'cpu', 'cuda' or 'cuda:N'.")
    threads: int = Field(0, ge=0, description="CPU threads of torch; 0 leaves torch's choice.")
    max_grad_norm: float = Field(0.0, ge=0.0, description="Gradient norm clip; 0 is off (paper: off).")
    keep_checkpoints: int = Field(2, ge=1, description="Newest checkpoints that are kept.")
    keep_best: bool = Field(
        False,
        description="Keep the checkpoint of the epoch with the lowest loss on unlabelled images as well.",
    )


class LossSettings(Section):
    supervised_weight: Share = Field(0.35, description="lambda: share of the labelled losses (paper: 0.35).")
    student_temperature: Positive = Field(0.1, description="tau_s of the cosine classifier (paper: 0.1).")
    teacher_temperature_start: Positive = Field(0.07, description="tau_t at the first epoch (paper: 0.07).")
    teacher_temperature: Positive = Field(0.04, description="tau_t after its warm-up (paper: 0.04).")
    teacher_warmup: Share = Field(
        0.15, description="Share of the epochs over which tau_t falls (paper: 30 of 200)."
    )
    mean_entropy_weight: float = Field(
        1.0,
        ge=0.0,
        description="Weight of the mean-entropy term, inside the (1 - lambda) factor (paper: 1; CUB 2, CIFAR-100 4).",
    )
    unsupervised_temperature: Positive = Field(
        1.0,
        description="tau_u of the two-view contrast (paper's text: 0.07; the baseline's public code: 1.0).",
    )
    supervised_temperature: Positive = Field(
        0.07,
        description="tau_c of the labelled contrast (paper's text: 1.0; the baseline's public code: 0.07).",
    )
    projector_hidden: int = Field(
        2048, ge=1, description="Width of the projector's hidden layers (baseline: 2048)."
    )
    projector_out: int = Field(256, ge=1, description="Dimensions of the contrastive space (baseline: 256).")


class PartSettings(Section):
    count: int | Literal["auto"] = Field(
        5, description="K, parts a class; 'auto' takes the best silhouette of 3 to 8 (paper)."
    )
    count_min: int = Field(3, ge=2, description="Smallest K that 'auto' tries (paper: 3).")
    count_max: int = Field(8, ge=2, description="Largest K that 'auto' tries (paper: 8).")
    silhouette_patches: int = Field(2000, ge=50, description="Patches a class that the silhouette samples.")
    alpha: float = Field(
        0.5, ge=0.0, description="Weight of the part branch (paper: 2 fine-grained, 1 generic)."
    )
    alpha_warmup: Share = Field(
        0.1, description="Share of the epochs over which alpha rises from 0 (paper: 20/200)."
    )
    gamma: Positive = Field(
        1.0, description="Candidates a new class / mean labelled images an old one (paper: 1)."
    )
    candidates: Literal["prediction", "sinkhorn", "prototypes", "calibrated"] = Field(
        "calibrated", description="How candidates are ranked (paper's ablation; 'calibrated' is Eq. 5-6)."
    )
    search: Literal["auto", "faiss", "dense"] = Field(
        "auto", description="Candidate retrieval: FAISS flat search or the dense top-k; both give one set."
    )
    candidate_temperature: Positive = Field(1.0, description="Temperature of Eq. 6 (paper: none, i.e. 1).")
    attention_filter: bool = Field(
        True, description="Fit mixtures on patches with at least mean class attention."
    )
    patches: Literal["frozen", "learned"] = Field(
        "frozen",
        description="What mixtures see: the frozen trunk's patches, or the trained block's (paper's ablation; slower).",
    )
    mixtures: Literal["gaussian", "kmeans"] = Field(
        "gaussian", description="What splits a class into parts: Gaussians, or k-means (paper's ablation)."
    )
    projection: int = Field(
        64, ge=0, description="PCA dimensions of the frozen patches before the mixtures; 0 keeps all (paper)."
    )
    temperature: Positive = Field(
        1.0, description="Divides part log-likelihoods before the softmax of Eq. 9."
    )
    variance_floor: Positive = Field(
        1e-3, description="Smallest variance, as a share of the pooled patch variance."
    )
    em_iterations: int = Field(20, ge=1, description="Most EM iterations of a cold fit.")
    em_iterations_warm: int = Field(
        5, ge=1, description="Most EM iterations of a refit from the last epoch's bank."
    )
    em_tolerance: Positive = Field(
        1e-3, description="Stop when mean log-likelihood a patch gains less than this."
    )
    min_patches: int = Field(
        40, ge=1, description="A class with fewer filtered patches keeps the shared mixture."
    )
    prior_strength: float = Field(
        50.0,
        ge=0.0,
        description="Relevance factor, in patches, of MAP adaptation from the shared mixture (0: paper).",
    )
    foreground_pooling: bool | Literal["auto"] = Field(
        "auto",
        description="Leave the background out of Eq. 10: patches count from the mean class attention on, fully from "
        "twice of it. Steps take 0.4 to 0.8 of the time. False: all patches alike (paper). 'auto': where a picture has "
        "100 patches or more; of smaller ones every patch is needed.",
    )
    normalise_parts: bool = Field(True, description="L2-normalise part features before PDR and the adapter.")
    presence: float = Field(
        2.0,
        ge=0.0,
        description="Attention mass from which a part counts as present, in patches of those that count.",
    )
    pdr_weight: float = Field(
        1.0, ge=0.0, description="Weight of the part discrepancy term beside alpha (paper: 1)."
    )
    pdr_temperature: Positive = Field(0.1, description="Temperature of Eq. 11 (paper: none).")
    pdr_positive_in_denominator: bool = Field(
        True,
        description="InfoNCE form of Eq. 11, bounded below by 0 (paper: False, which has no lower bound).",
    )
    classification: bool = Field(
        True, description="Classification losses on the part feature (paper's ablation)."
    )
    contrast: bool = Field(True, description="Contrastive losses on the part feature (paper's ablation).")
    adapter_start: Literal["linear", "random"] = Field(
        "linear", description="Part adapter beside a linear guess of the class token, or all random (paper)."
    )
    adapter: Literal["mlp", "mean"] = Field(
        "mlp", description="How part features become one: the part adapter, or their mean (paper's ablation)."
    )
    adapter_hidden: int = Field(
        0, ge=0, description="Hidden width of the part adapter; 0 is the backbone's D."
    )
    cluster_weight: float = Field(
        0.3, ge=0.0, description="Weight of the part feature beside the class token in the last clustering."
    )
    assignment_of_labelled: Literal["label", "predicted"] = Field(
        "label", description="Whose mixture a labelled image uses in training (paper: its label's)."
    )


class DiscoverySettings(Section):
    method: str = Field(
        "partgcd",
        pattern=r"^[a-z][a-z0-9-]{0,30}$",
        description="What finds the categories; 'gcd' is semi-supervised k-means on frozen features.",
    )
    classes: int | Literal["auto"] = Field("auto", description="Number of categories, old and new together.")
    prototype_start: Literal["clusters", "random"] = Field(
        "clusters",
        description="Prototypes from semi-supervised k-means of untrained features, or random (paper).",
    )
    prototype_refits: list[Share] = Field(
        [0.1, 0.2, 0.3, 0.4, 1.0],
        description="Shares of the epochs after which the new classes' prototypes are set anew to clusters of "
        "the features learned so far; 1 is after the last, then of all classes; [] is never (paper).",
    )
    cluster_temperature: Positive = Field(
        0.05, description="Temperature of the last clustering's assignment by cosine."
    )
    classes_max: int = Field(1000, ge=2, description="Largest number of categories 'auto' considers.")
    sinkhorn_temperature: Positive = Field(
        0.1, description="Temperature of the predictions that Sinkhorn adjusts."
    )
    marginal_power: Share | Literal["auto"] = Field(
        "auto",
        description="Classes get the shares that are predicted, to this power, of the images that Sinkhorn deals "
        "out: 0 is one share for all (paper), 1 leaves predictions as they are, 'auto' spreads the shares as "
        "labels and predictions both say that labelled classes differ in size.",
    )
    sinkhorn_iterations: int = Field(10, ge=1, description="Most Sinkhorn iterations.")
    sinkhorn_tolerance: Positive = Field(
        1e-3, description="Largest relative error of a marginal at which it stops."
    )
    fusion_temperature: Positive = Field(
        0.1,
        description="Temperature of both softmaxes of Eq. 14 (paper: none, i.e. 1; tau_s gives usable confidences).",
    )
    fusion_part_weight: float = Field(
        1.0, ge=0.0, description="Weight of the part head in Eq. 14 (paper: 1)."
    )


class Settings(Section):
    """Everything that decides a run's outcome. Two runs with equal settings, data and machine are equal."""

    seed: int = Field(0, ge=0, lt=2**31, description="Seed of every random choice.")
    data: DataSettings = DataSettings()
    backbone: BackboneSettings = BackboneSettings()
    train: TrainSettings = TrainSettings()
    loss: LossSettings = LossSettings()
    parts: PartSettings = PartSettings()
    discovery: DiscoverySettings = DiscoverySettings()

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        parts = self.parts
        if parts.count_min > parts.count_max:
            raise ValueError(
                f"parts.count_min ({parts.count_min}) is above parts.count_max ({parts.count_max}): swap or widen them"
            )
        if isinstance(parts.count, int) and not 2 <= parts.count <= 32:
            raise ValueError(f"parts.count is {parts.count}: give a number of parts from 2 to 32, or 'auto'")
        if isinstance(self.discovery.classes, int) and self.discovery.classes < 2:
            raise ValueError(
                f"discovery.classes is {self.discovery.classes}: at least 2 categories, or 'auto'"
            )
        return self
