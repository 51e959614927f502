"""onnxruntime sessions: threads that do not fight over cores, and the device that is there."""

from __future__ import annotations

import os
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from partgcd.config.errors import UserError
from partgcd.export.graph_check import check_graph
from partgcd.export.graph_names import INPUT

Provider = Literal["auto", "cpu", "cuda"]
_CUDA, _CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


def runtime() -> Any:
    """The onnxruntime module.

    Raises:
        UserError: it is not installed.
    """
    # It would report to its makers and write a device id into the user's home; who wants that sets it to 0.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError(
            "onnxruntime is not installed: pip install 'partgcd[cpu]' (or 'partgcd[gpu]' on a GPU)", 1
        ) from error
    return onnxruntime


def open_session(model: bytes, threads: int = 0, provider: Provider = "auto") -> Any:
    """A session on ``model``.

    Args:
        model: the graph's bytes, checked by `check_graph` before onnxruntime sees them: from bytes, too, it would
            read files that the graph names.
        threads: of one run; 0 takes the CPUs this process may use.
        provider: 'auto' is the GPU if onnxruntime sees one.

    Raises:
        UserError: the graph is refused, onnxruntime is missing or can't use it, or there is no such device.
    """
    ort = runtime()
    check_graph(model)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or usable_cpus()
    options.inter_op_num_threads = 1
    # Spinning threads burn the cores that decoding and other replicas need.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Else bytes that are ONNX to one reader and onnxruntime's own format to the other pass the check unseen.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    options.log_severity_level = 4
    there = ort.get_available_providers()
    if provider == "cuda" and _CUDA not in there:
        raise UserError("onnxruntime sees no GPU here: pip install 'partgcd[gpu]', or use the CPU", 1)
    wanted = [_CUDA, _CPU] if provider != "cpu" and _CUDA in there else [_CPU]
    try:
        session = ort.InferenceSession(model, options, providers=wanted)
    except Exception as error:  # onnxruntime raises its own kinds, and differently from version to version
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"onnxruntime can't use model.onnx ({reason}): export the bundle again", 1) from error
    if provider == "cuda" and session.get_providers()[0] != _CUDA:
        raise UserError(
            "onnxruntime could not start on the GPU (its CUDA libraries are missing or too old)", 1
        )
    return session


def run(session: Any, pixels: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
    """All outputs by name for ``pixels`` [B, 3, S, S], each [B, ...] of the size that the graph states.

    Raises:
        UserError: onnxruntime fails on the graph, or a result has another size: it would only warn of that.
    """
    outputs = session.get_outputs()
    names = [each.name for each in outputs]
    try:
        values = session.run(names, {INPUT: pixels})
    except Exception as error:  # onnxruntime raises its own kinds, and differently from version to version
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"onnxruntime can't run model.onnx ({reason}): export the bundle again", 1) from error
    for each, value in zip(outputs, values, strict=True):
        if list(value.shape) != [len(pixels), *each.shape[1:]]:
            raise UserError(
                f"model.onnx gives {each.name} as {list(value.shape)}, not as it says: export the bundle again",
                1,
            )
    return dict(zip(names, values, strict=True))


def run_all(session: Any, pixels: NDArray[np.uint8], batch: int = 8) -> dict[str, NDArray[Any]]:
    """The same for any number of images, ``batch`` at a time."""
    chunks = [run(session, pixels[start : start + batch]) for start in range(0, len(pixels), batch)]
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def usable_cpus() -> int:
    """CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
