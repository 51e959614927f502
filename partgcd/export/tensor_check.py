"""Whether a bundle's tensors are those that training, splitting and rediscovery will take them for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partgcd.config.errors import UserError
from partgcd.export.bundle import BANK, EXEMPLARS, WEIGHTS, Bundle, read_tensors
from partgcd.export.manifest import Manifest

Tensors = Mapping[str, NDArray[Any]]

_FLOAT, _WHOLE, _TRUTH = "f", "iu", "b"

# Letters: C classes, K parts, d dimensions of the projection, D of the class token, Dt of frozen patches, F of the
# patches that mixtures see, M exemplars, T tokens an image, S images that were seen. A name that ends in ? may be
# missing in older bundles.
_TABLES: dict[str, dict[str, tuple[str, str]]] = {
    BANK: {
        "log_pi": (_FLOAT, "C K"), "mu": (_FLOAT, "C K d"), "var": (_FLOAT, "C K d"), "fitted": (_TRUTH, "C"),
        "shared.log_pi": (_FLOAT, "K"), "shared.mu": (_FLOAT, "K d"), "shared.var": (_FLOAT, "K d"),
        "projection.mean": (_FLOAT, "F"), "projection.basis": (_FLOAT, "F *"),
        "novelty.mean?": (_FLOAT, "C"), "novelty.std?": (_FLOAT, "C"),
    },
    EXEMPLARS: {
        "keys": (_WHOLE, "M"), "classes": (_WHOLE, "M"), "labelled": (_TRUTH, "M"), "cls": (_FLOAT, "M D"),
        "tokens": (_FLOAT, "M T Dt"), "held?": (_TRUTH, "M"), "seen?": (_WHOLE, "S"),
        "remoteness.old?": (_FLOAT, "*"), "remoteness.discovered?": (_FLOAT, "*"),
    },
    WEIGHTS: {"prototypes.weight": (_FLOAT, "C D"), "part_prototypes.weight?": (_FLOAT, "C D"), "lean?": (_FLOAT, "C")},
}  # fmt: skip


def check_tensors(bundle: Bundle) -> None:
    """Refuse tensors that are missing, of another kind or size than the manifest's, or hold what is no number.

    Raises:
        UserError: the first that is wrong, by file and name.
    """
    for name, table in _TABLES.items():
        if name in bundle.manifest.files:
            _check(name, read_tensors(bundle, name), table, bundle.manifest)


def _check(file: str, tensors: Tensors, table: dict[str, tuple[str, str]], manifest: Manifest) -> None:
    sizes = {
        "C": len(manifest.classes), "K": manifest.parts or 0, "D": manifest.backbone.dim,
        "Dt": manifest.backbone.trunk_dim,
    }  # fmt: skip
    if manifest.projection is not None:
        sizes["d"] = manifest.projection.dims
    for name, (kinds, letters) in table.items():
        tensor = tensors.get(name.rstrip("?"))
        if tensor is None:
            if not name.endswith("?"):
                raise _refused(file, f"lacks {name}")
            continue
        wanted = letters.split()
        # A letter without a size yet takes the first that comes; later ones have to agree with it.
        fits = len(wanted) == tensor.ndim and all(
            letter == "*" or sizes.setdefault(letter, size) == size
            for letter, size in zip(wanted, tensor.shape, strict=True)
        )
        if not fits or tensor.dtype.kind not in kinds:
            shape = ", ".join(str(sizes.get(letter, letter)) for letter in wanted)
            raise _refused(
                file, f"has {name.rstrip('?')} as {tensor.dtype} {list(tensor.shape)}, not [{shape}]"
            )
    for name, tensor in tensors.items():
        if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
            raise _refused(file, f"has values in {name} that are no numbers")
    if file == EXEMPLARS and len(tensors["classes"]):
        least, most = int(tensors["classes"].min()), int(tensors["classes"].max())
        if least < 0 or most >= sizes["C"]:
            raise _refused(file, f"has exemplars of class {least if least < 0 else most}")
    if file == BANK and not all((tensors[name] > 0).all() for name in ("var", "shared.var")):
        raise _refused(file, "has variances that are not above 0")


def _refused(file: str, why: str) -> UserError:
    return UserError(f"the bundle is refused: {file} {why}; export it again", 1)
