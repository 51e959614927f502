from __future__ import annotations

from pathlib import Path

import pytest
import torch

from partgcd.config.errors import UserError
from partgcd.config.tree import TrainSettings
from partgcd.run import device as here
from partgcd.run.device import apply_threads, autocast, peak_memory_mb, pick_device, pick_precision, processor


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("without_gpu")
def test_auto_is_the_cpu_where_there_is_no_gpu() -> None:
    assert pick_device("auto") == torch.device("cpu")
    assert pick_device("cpu") == torch.device("cpu")


@pytest.mark.usefixtures("two_gpus")
def test_auto_is_the_gpu_where_there_is_one() -> None:
    assert pick_device("auto").type == "cuda"
    assert pick_device("cuda:1") == torch.device("cuda:1")


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_beyond_the_last_is_refused_with_their_number() -> None:
    with pytest.raises(UserError, match=r"cuda:2.*2 GPU"):
        pick_device("cuda:2")


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize("name", ["cuda", "cuda:0", "frob", "", "mps", "meta", "cuda:x", "cpu cpu"])
def test_a_device_that_is_not_here_is_wrong_usage(name: str) -> None:
    with pytest.raises(UserError) as caught:
        pick_device(name)
    assert caught.value.code == 2
    assert "\n" not in str(caught.value)


def test_a_named_precision_is_kept() -> None:
    assert pick_precision("fp32", torch.device("cpu")) == "fp32"
    assert pick_precision("bf16", torch.device("cpu")) == "bf16"


@pytest.mark.parametrize("native", [True, False])
def test_auto_precision_is_bf16_only_where_the_hardware_has_it(
    monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    monkeypatch.setattr(here, "_cpu_multiplies_bf16", lambda: native)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: native)
    wanted = "bf16" if native else "fp32"
    assert pick_precision("auto", torch.device("cpu")) == wanted
    assert pick_precision("auto", torch.device("cuda")) == wanted


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_autocast_decides_the_type_of_products_and_can_be_entered_again(
    precision: str, dtype: torch.dtype
) -> None:
    context = autocast(precision, torch.device("cpu"))
    for _ in range(2):
        with context():
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


def test_threads_are_set_only_where_the_settings_say_so() -> None:
    before = torch.get_num_threads()
    try:
        assert apply_threads(TrainSettings(threads=0)) == before
        assert apply_threads(TrainSettings(threads=1)) == 1 == torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def test_the_processor_is_named_with_its_matrix_instructions() -> None:
    told = processor()
    assert told and "\n" not in told and ":" not in told
    cpu = Path("/proc/cpuinfo")
    if cpu.exists():
        assert ("amx_bf16" in told) == ("amx_bf16" in cpu.read_text())


def test_peak_memory_is_a_plausible_number_of_mebibytes() -> None:
    assert 50 < peak_memory_mb(torch.device("cpu")) < 2**20
