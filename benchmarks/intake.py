"""`python -m benchmarks.intake`: a folder of JPEG files of mixed sizes, taken in and opened again.

Each line is a folder made for it, taken in by a process of its own and opened again by another
one. Memory is by how much the first one's largest resident set grew over what it was with all
libraries loaded; leave the machine alone for the sake of the seconds, memory does not mind.
"""

import os
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from PIL import Image

from fedadb_app.data.arrays import ImageSchema
from fedadb_app.data.sources import open_node_data

CLASSES = ("a", "b", "c", "d")
SIDES = (64, 800)
"""Heights and widths are drawn between these."""


@dataclass(frozen=True)
class Opening:
    """What it took a process to open the folder.

    Attributes
    ----------
    images : int
        How many it found.
    seconds, cpu_seconds : float
        By the clock, and of all its threads.
    mib : float
        By how much its largest resident set grew.
    """

    images: int
    seconds: float
    cpu_seconds: float
    mib: float


def main(
    counts: Annotated[str, typer.Option(help="Numbers of images with commas.")] = "1000,10000",
    side: Annotated[int, typer.Option(help="Of the prepared images, in pixels.")] = 224,
) -> None:
    """Print a line for each number of images."""
    print("| images | MiB of JPEG | s | images/s | CPU s | MiB more | opened again, s | CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    for count in map(int, counts.split(",")):
        with tempfile.TemporaryDirectory() as scratch:
            root, cache = Path(scratch) / "hospital", Path(scratch) / "cache"
            size = write_folder(root, count)
            first, again = (in_new_process(opened, root, cache, side) for _ in range(2))
        assert first.images == again.images == count
        print(
            f"| {count} | {size / 2**20:.0f} | {first.seconds:.1f} | {count / first.seconds:.0f} "
            f"| {first.cpu_seconds:.1f} | {first.mib:.0f} | {again.seconds:.2f} "
            f"| {again.cpu_seconds:.2f} |",
            flush=True,
        )


def write_folder(root: Path, count: int) -> int:
    """Write that many JPEG files, all different, into class folders; return their bytes."""
    for name in CLASSES:
        (root / name).mkdir(parents=True)

    def write(number: int) -> int:
        rng = np.random.default_rng(number)
        height, width = rng.integers(*SIDES, 2, endpoint=True)
        coarse = rng.integers(0, 256, (height // 12, width // 12, 3), np.uint8)
        path = root / CLASSES[number % len(CLASSES)] / f"{number:06}.jpg"
        Image.fromarray(coarse).resize((int(width), int(height))).save(path, quality=85)
        return path.stat().st_size

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return sum(pool.map(write, range(count)))


def in_new_process(work: Callable[..., Opening], *arguments: object) -> Opening:
    """Call a function in a process that has done nothing else."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def opened(root: Path, cache: Path, side: int) -> Opening:
    """Open a folder as a node does, preparing it where that was not done before."""
    os.environ["XDG_CACHE_HOME"] = str(cache)
    before, start, cpu = _largest(), time.perf_counter(), time.process_time()
    data = open_node_data(root, ImageSchema(CLASSES, (3, side, side)))
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    return Opening(len(data.train_labels), seconds, cpu_seconds, _largest() - before)


def _largest() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    typer.run(main)
