"""What ``partgcd doctor`` looks at."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from importlib import metadata

from partgcd import __version__

_SHOWN = ("torch", "torchvision", "timm", "numpy", "scipy", "scikit-learn", "pillow", "ray", "onnx")
# Both of a pair write the same import folder: the one installed last wins in silence.
_PAIRS = (("faiss-cpu", "faiss-gpu"), ("onnxruntime", "onnxruntime-gpu"))

Version = Callable[[str], str | None]


def installed(name: str) -> str | None:
    """A distribution's version, None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def checkup(ask_hub: bool, version: Version = installed) -> tuple[list[str], list[str]]:
    """What is here, and what is wrong with it.

    Args:
        ask_hub: whether to see if the weights hub answers.
        version: how versions are looked up.
    """
    lines = [f"partgcd {__version__}, Python {sys.version.split()[0]}"]
    lines.append("packages: " + ", ".join(f"{name} {version(name) or 'absent'}" for name in _SHOWN))
    problems = [*_pair_problems(version), *_torch_problems(version)]
    for pair in _PAIRS:
        loaded = [f"{name} {version(name)}" for name in pair if version(name)]
        lines.append(f"{pair[0].split('-')[0]}: {' and '.join(loaded) or 'absent'}")
    lines.extend(_devices(problems))
    lines.extend(_weights(ask_hub))
    return lines, problems


def _pair_problems(version: Version) -> list[str]:
    found = []
    for cpu, gpu in _PAIRS:
        if version(cpu) and version(gpu):
            found.append(
                f"{cpu} and {gpu} are both installed and overwrite each other: "
                f"pip uninstall {cpu} {gpu}, then install partgcd[cpu] or partgcd[gpu]"
            )
        elif not version(cpu) and not version(gpu):
            found.append(f"neither {cpu} nor {gpu} is installed: pip install 'partgcd[cpu]' (or [gpu])")
    return found


def _torch_problems(version: Version) -> list[str]:
    """torchvision is built against one exact torch; another one makes imports fail far from the cause."""
    torch, vision = version("torch"), version("torchvision")
    if torch is None or vision is None:
        return [
            f"{'torch' if torch is None else 'torchvision'} is not installed: pip install torch torchvision"
        ]
    wanted = next(
        (match[1] for text in metadata.requires("torchvision") or []
         if (match := re.match(r"torch\s*\(?==\s*([\w.]+)", text))),
        None,
    )  # fmt: skip
    if wanted is not None and torch.split("+")[0] != wanted.split("+")[0]:
        return [
            f"torchvision {vision} needs torch {wanted}, but {torch} is installed: install the pair together"
        ]
    return []


def _devices(problems: list[str]) -> list[str]:
    try:
        import torch
    except Exception as error:
        problems.append(f"torch can't be imported: {error}")
        return []
    lines = [f"cpu: {os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads"]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            card = torch.cuda.get_device_properties(index)
            lines.append(f"cuda:{index}: {card.name}, {card.total_memory / 2**30:.0f} GiB")
    else:
        lines.append("cuda: no GPU that torch can use")
    from partgcd.run.device import pick_device, pick_precision

    lines.append(f"precision auto: {pick_precision('auto', pick_device('auto'))}")
    for module in ("torchvision", "faiss", "onnxruntime"):
        try:
            loaded = __import__(module)
        except ImportError:
            continue
        except Exception as error:
            problems.append(f"{module} can't be imported: {error}")
            continue
        if module == "onnxruntime":
            lines.append(f"onnxruntime providers: {', '.join(loaded.get_available_providers())}")
    return lines


def _weights(ask_hub: bool) -> list[str]:
    from partgcd.backbone.weights import offline_names, weights_status

    lines = [f"weights {name}: {weights_status(name) or f'not fetched (partgcd weights fetch {name})'}"
             for name in offline_names()]  # fmt: skip
    if ask_hub:
        lines.append(f"weights hub: {_hub()}")
    return lines


def _hub() -> str:
    try:
        from huggingface_hub import HfApi

        HfApi().model_info("timm/vit_base_patch16_224.dino", timeout=4.0)
    except Exception as error:
        return f"not reachable ({type(error).__name__}); offline weights and --weights FILE work without it"
    return "reachable"
