"""examples/hospital as a newcomer runs it."""

import subprocess
import sys

import pytest
from helpers import REPOSITORY

pytestmark = [pytest.mark.flower, pytest.mark.timeout(900)]


def test_three_hospitals_train_together(tmp_path):
    script = REPOSITORY / "examples" / "hospital" / "federation.py"
    done = subprocess.run(
        [sys.executable, script, "--folder", tmp_path / "all", "--rounds", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("pass  admission  the SuperLink knows this node's key") == 3
    assert "FAIL" not in done.stdout
    assert "accuracy: final" in done.stdout
    (rounds,) = (tmp_path / "all" / "results").glob("*/rounds.csv")
    first, *rows = [line.split(",") for line in rounds.read_text().splitlines()]
    assert [row[first.index("clients")] for row in rows] == ["3", "3"]
