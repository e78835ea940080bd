"""`make run` and `make test` do what is missing, and only that.

The commands they call are stand-ins here that write down how they were called.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import REPOSITORY

STAND_IN = f"""#!{sys.executable}
import json, pathlib, re, sys
called = pathlib.Path("calls.jsonl").open("a")
name = pathlib.Path(sys.argv[0]).name
print(json.dumps([name, *sys.argv[1:]]), file=called)
if name == "fedadb" and sys.argv[1] == "run":
    folder = pathlib.Path(*re.findall('"(.*?)"', sys.argv[-1]))
    folder.mkdir(parents=True)
    status = pathlib.Path("next-status").read_text()
    (folder / "summary.json").write_text(json.dumps({{"status": status}}, indent=1))
    print("results:", folder)
    sys.exit(status != "completed")
if name == "fedadb" and sys.argv[1] == "report":
    page = pathlib.Path(sys.argv[2], "report.html").absolute()
    page.touch()
    print("report:", page)
"""

Make = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy, at a path with a blank, whose environment has stand-ins alone."""
    copy = tmp_path / "my copy"
    (copy / ".venv" / "bin").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy2(REPOSITORY / name, copy)
    for name in ("python", "fedadb", "pytest"):
        program = copy / ".venv" / "bin" / name
        program.write_text(STAND_IN)
        program.chmod(0o755)
    (copy / "next-status").write_text("completed")
    return copy


@pytest.fixture
def make(checkout: Path) -> Make:
    """Call make there."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        ours = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL")}
        return subprocess.run(
            ["make", *arguments],
            cwd=checkout,
            env=ours,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    return call


def calls(checkout: Path) -> list[list[str]]:
    """What was called since the last look."""
    path = checkout / "calls.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return [json.loads(line) for line in lines]


INSTALL = ["python", "-m", "pip", "install", "-e", ".[dev]"]


def test_make_alone_names_every_target(make):
    rules = [line.split(":")[0] for line in (REPOSITORY / "Makefile").read_text().splitlines()]
    (phony,) = [
        line.split()[1:]
        for line in (REPOSITORY / "Makefile").read_text().splitlines()
        if line.startswith(".PHONY")
    ]
    assert set(phony) <= set(rules)
    listed = [line.split()[:2] for line in make().stdout.splitlines()]
    assert listed == [["make", target] for target in phony]


def test_the_tests_install_once(make, checkout):
    assert make("test").returncode == 0
    assert calls(checkout) == [INSTALL, ["pytest", "-n", "2"]]
    assert make("test").returncode == 0
    assert calls(checkout) == [["pytest", "-n", "2"]]


def test_new_dependencies_are_installed(make, checkout):
    make("test")
    calls(checkout)
    later = time.time() + 10
    os.utime(checkout / "pyproject.toml", (later, later))
    assert make("test").returncode == 0
    assert calls(checkout)[0] == INSTALL


def test_an_installation_that_failed_is_tried_again(make, checkout):
    program = checkout / ".venv" / "bin" / "python"
    program.write_text("#!/bin/sh\nexit 7\n")
    assert make("test").returncode != 0
    program.write_text(STAND_IN)
    calls(checkout)
    assert make("test").returncode == 0
    assert calls(checkout)[0] == INSTALL


def test_failed_tests_fail(make, checkout):
    (checkout / ".venv" / "bin" / "pytest").write_text("#!/bin/sh\nexit 1\n")
    assert make("test").returncode != 0


def test_another_torch(make, checkout):
    make("test", "TORCH=torch==2.5 torchvision --index-url https://example.org/cpu")
    torch, app, _ = calls(checkout)
    assert torch[3:] == [
        "install",
        "torch==2.5",
        "torchvision",
        "--index-url",
        "https://example.org/cpu",
    ]
    assert app == INSTALL


def test_no_python_that_fits(make, checkout):
    shutil.rmtree(checkout / ".venv")
    done = make("run", "PYTHON=false")
    assert done.returncode != 0
    assert "no Python from 3.11 to 3.14 with venv among: false" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (checkout / ".venv").exists()


def test_the_environment_is_made(make, checkout):
    shutil.rmtree(checkout / ".venv")
    make("test", f"PYTHON={sys.executable}", "TORCH=--no-such-option")  # before anything is fetched
    assert (checkout / ".venv" / "bin" / "python").exists()
    assert not (checkout / ".venv" / ".installed").exists()


def test_run_writes_a_run_and_its_page(make, checkout):
    done = make("run")
    assert done.returncode == 0, done.stderr
    _, run, report = calls(checkout)
    assert run[:3] == ["fedadb", "run", "-c"]
    assert report == ["fedadb", "report", "results/digits"]
    folder = checkout / "results" / "digits"
    assert str(folder) in done.stdout
    assert str(folder / "report.html") in done.stdout


def test_run_again_only_says_where_it_is(make, checkout):
    make("run")
    calls(checkout)
    done = make("run")
    assert done.returncode == 0
    assert calls(checkout) == []
    assert str(checkout / "results" / "digits" / "report.html") in done.stdout
    (checkout / "results" / "digits" / "report.html").unlink()
    make("run")
    assert calls(checkout) == [["fedadb", "report", "results/digits"]]


@pytest.mark.parametrize("status", ["failed", "stopped", "running"])
def test_a_run_that_did_not_end_is_kept_and_made_again(make, checkout, status):
    (checkout / "next-status").write_text(status)
    assert make("run").returncode != 0
    (checkout / "next-status").write_text("completed")
    done = make("run")
    assert done.returncode == 0
    first, second = sorted((checkout / "results").iterdir())
    assert json.loads((first / "summary.json").read_text())["status"] == status
    assert json.loads((second / "summary.json").read_text())["status"] == "completed"
    assert str(second / "report.html") in done.stdout
    calls(checkout)
    make("run")
    assert calls(checkout) == []
