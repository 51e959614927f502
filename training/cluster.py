"""Ray as a guest: a cluster of our own for one command, or somebody's, joined; nothing left behind."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

from partgcd.config.errors import UserError
from partgcd.training.options import Cluster

_STORE_BYTES = 100 * 2**20
"""For Ray's objects; the tensors of a run are not among them."""


@contextmanager
def connected(cluster: Cluster, cpus: int) -> Iterator[None]:
    """Inside: Ray runs and this process is its driver. A connection that is there already is used and left.

    Args:
        cpus: that all workers together want, of a cluster of our own.

    Raises:
        UserError: no cluster at the address, or none could be started.
    """
    if ray.is_initialized():
        yield
        return
    level = logging.INFO if cluster.verbose else logging.ERROR
    options: dict[str, Any] = {"log_to_driver": cluster.verbose, "logging_level": level}
    logging.getLogger("ray").setLevel(level)
    # A short path: Ray makes sockets in it, whose names may have 107 bytes.
    scratch = tempfile.mkdtemp(prefix="pgcd-")
    try:
        try:
            if cluster.address is None:
                ray.init(
                    "local", num_cpus=max(cpus, os.cpu_count() or 1), include_dashboard=False, _temp_dir=scratch,
                    object_store_memory=_STORE_BYTES, **options,
                )  # fmt: skip
            else:
                ray.init(cluster.address, **options)
        except Exception as error:  # Ray raises plain ones among others
            where = f"no Ray cluster at '{cluster.address}'" if cluster.address else "Ray did not start here"
            lines = str(error).strip().splitlines()
            raise UserError(f"{where}: {lines[0] if lines else error!r}", 1) from error
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(scratch, ignore_errors=True)


def free_reservations() -> None:
    """Give back what a lost controller had reserved on a cluster of our own.

    Ray has a helper for that, which asks the dashboard; a cluster of our own has none.
    """
    for name, reserved in placement_group_table().items():
        if reserved["state"] != "REMOVED":
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(name))))
