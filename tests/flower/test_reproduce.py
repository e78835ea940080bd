"""`fedadb reproduce` as a user types it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.flower, pytest.mark.timeout(900)]


def test_a_row_of_table_3(simulation, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 1000), ("test", 90)):  # 100 clients want ten images each
        arrays[f"{part}_images"] = rng.integers(0, 256, (count, 28, 28, 3), np.uint8)
        arrays[f"{part}_labels"] = np.arange(count)[:, None] % 9
    np.savez(tmp_path / "pathmnist.npz", **arrays)
    part = ["table3", "--only", "fedavg", "--rounds", "1", "--seeds", "0"]
    where = ["--app", simulation.app, "--output", tmp_path / "out", "-c", f'data-dir="{tmp_path}"']
    done = subprocess.run(
        [Path(sys.executable).parent / "fedadb", "reproduce", *part, *where],
        env=simulation.environment(),
        cwd=simulation.home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "out" / "small" / "table3.md").read_text(encoding="utf-8")
    assert "All runs have 1 round." in page
    assert "| FedAvg | " in page
    assert "(47.68, " in page
