"""A copy of the checkout in which a page of the docs is done as it says, and its tests there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from helpers import REPOSITORY

COPIED = ("fedadb_app", "strategies", "tests", "docs", "configs", "README.md", "pyproject.toml")
APPS = ("client_app.py", "server_app.py")


def blocks(page: str, language: str) -> list[str]:
    """The page's blocks of code in one language."""
    text = (REPOSITORY / "docs" / page).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def copy_checkout(copy: Path) -> Path:
    for name in (*COPIED, *APPS):
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    return copy


def insert(file: Path, *additions: tuple[str, str]) -> None:
    """Insert texts, each before the one line that begins so."""
    text = file.read_text()
    for before, added in additions:
        assert text.count(f"\n{before}") == 1, before
        text = text.replace(f"\n{before}", f"\n{added}{before}")
    file.write_text(text)


def in_copy(copy: Path, *command: str) -> str:
    """Run Python there; what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return done.stdout


def passes(copy: Path, *tests: str) -> None:
    """Check that these tests, of which there are some, pass there."""
    output = in_copy(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert re.search(r"[1-9]\d* passed", output), output[-2000:]
