"""What the app's processes arrange before they compute."""

import ctypes
import os
import platform
import sys
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT_BYTES = 1 << 30  # free memory beyond it still goes back
_MAPPED_FROM_BYTES = 32 << 20  # glibc allows no more; larger blocks are mapped one by one


def keep_freed_memory() -> None:
    """Tell glibc's allocator, where there is one, not to return freed memory at once.

    A training step frees and asks for the same tens of megabytes. By default glibc hands them back
    to the system in between, and the system gives them anew, page by page: with LeNet a fifth of a
    simulated client's time went there.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def release_freed_memory(server_round: int) -> None:
    """Give back, every tenth round, what lies in pieces too small for the next batches.

    Batches and clients of ever new sizes leave such pieces behind; without this a worker had grown
    by a tenth after 200 rounds. What it costs is one batch's page faults.
    """
    if server_round % 10 == 0 and platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def prepare_simulation(bundle: Path) -> None:
    """Let a simulation have Ray workers that run the code that this run brought.

    Flower loads the ClientApp before it starts Ray. Ray would join whatever cluster
    ``/tmp/ray/ray_current_cluster`` names, another user's too, and wait there for CPUs; a cluster
    that ``RAY_ADDRESS`` names is one that somebody has chosen. Ray's workers import the ClientApp
    by its module's name and look first in the folder in which Ray is started: that of the user's
    first `flwr run`, with whatever ``client_app.py`` lies there. On another machine of a cluster
    that folder does not exist: there they get the bundle from Ray (docs/scale.md).
    """
    if Path(sys.argv[0]).stem != "flwr-simulation":
        return
    from fedadb_app import simulation_workers  # it needs Ray, which a SuperNode need not have

    os.chdir(bundle)
    simulation_workers.keep_living_workers()
    if os.environ.setdefault("RAY_ADDRESS", "local") != "local":
        simulation_workers.join_cluster(bundle)
