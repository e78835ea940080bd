"""`fedadb tune` with two jobs, killed with -9 and started again, chooses what it would have."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import REPOSITORY

pytestmark = pytest.mark.slow


def begin(folder: Path, pause: float) -> "subprocess.Popen[str]":
    tests = REPOSITORY / "tests"
    what = ["--strategies", "fedavg,fedprox", "--trials", "10", "--jobs", "2", "--workers", "1"]
    what += ["-c", 'validation="0.1" num-server-rounds=8', "--app", str(REPOSITORY)]
    return subprocess.Popen(
        [sys.executable, "-m", "tuning.cells", "tune", "--output", str(folder), *what],
        cwd=tests,
        env={**os.environ, "PAUSE": str(pause), "PYTHONPATH": f"{tests}{os.pathsep}{REPOSITORY}"},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_killed_and_started_again_it_ends_as_one_that_was_left_alone(tmp_path):
    alone = begin(tmp_path / "alone", 0.0)
    alone.communicate(timeout=120)
    assert alone.returncode == 0
    killed = begin(tmp_path / "killed", 0.2)
    assert killed.stdout is not None
    for _ in range(13):  # both jobs are in the second batch by then
        killed.stdout.readline()
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "tuned.toml").exists()
    again = begin(tmp_path / "killed", 0.0)
    again.communicate(timeout=120)
    assert again.returncode == 0
    for name in ("tuned.toml", "trials.csv", "tuning.md"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
