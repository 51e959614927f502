"""Which device and which precision a run uses, and how many threads."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import torch

from partgcd.config.errors import UserError
from partgcd.config.tree import TrainSettings

Autocast = Callable[[], torch.autocast]


def pick_device(name: str) -> torch.device:
    """'auto' is the first GPU if torch sees one, else the CPU.

    Raises:
        UserError: the named device does not exist here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"no device '{name}': use auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device '{name}' is not supported: use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"no device '{name}': torch sees {torch.cuda.device_count()} GPU(s) here")
    return device


def pick_precision(name: str, device: torch.device) -> str:
    """'auto' is bf16 where the hardware multiplies it natively, else fp32."""
    if name != "auto":
        return name
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    return "bf16" if _cpu_multiplies_bf16() else "fp32"


def autocast(precision: str, device: torch.device) -> Autocast:
    """A factory of the autocast context for ``precision`` on ``device``."""
    enabled = precision == "bf16"
    return lambda: torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled)


def apply_threads(settings: TrainSettings) -> int:
    """Set torch's thread count if the settings give one; the count in force is returned."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    return torch.get_num_threads()


def peak_memory_mb(device: torch.device) -> float:
    """Largest memory held so far, 2^20 bytes: the card's on a GPU, the process's resident set elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def processor() -> str:
    """The CPU's model and those of its matrix instructions that decide how results round."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="ignore").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields: dict[str, str] = {}
    for key, _, value in (line.partition(":") for line in lines):
        fields.setdefault(key.strip(), value.strip())
    flags = [flag for flag in fields.get("flags", "").split() if flag in ("amx_bf16", "avx512_bf16")]
    return ", ".join([fields.get("model name") or platform.machine(), *flags])


def _cpu_multiplies_bf16() -> bool:
    """Emulated bf16 is slower than fp32, so only CPUs that list the instructions count."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="ignore")
    except OSError:
        return False
    return any(flag in flags for flag in ("amx_bf16", "avx512_bf16", " bf16"))
