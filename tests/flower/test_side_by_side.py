"""`fedadb compare --jobs` as a user types it: two real SuperLinks, two simulations."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from flower.processes import command_line
from helpers import read_csv

pytestmark = [pytest.mark.flower, pytest.mark.timeout(1500)]


def test_two_runs_side_by_side_find_what_one_alone_finds(simulation, bare_twin, tmp_path):
    folder = tmp_path / "comparison"
    what = ["--strategies", "fedavg,fedadb", "-c", "num-server-rounds=2 node-timeout=600"]
    done = subprocess.run(
        [
            Path(sys.executable).parent / "fedadb",
            "compare",
            *what,
            "--jobs",
            "2",
            "--workers",
            "1",
            "--app",
            simulation.app,
            "--output",
            folder,
        ],
        env=simulation.environment(),
        cwd=simulation.home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rounds = read_csv(folder / "runs" / "fedadb-alpha0.1-seed0" / "rounds.csv")
    assert [r["accuracy"] for r in rounds] == bare_twin.column("accuracy")
    assert len(read_csv(folder / "comparison.csv")) == 2
    # By the kernel's own files: another test's process may end, or be a zombie, while one looks.
    assert not [pid for pid in psutil.pids() if str(folder).encode() in command_line(pid)]
