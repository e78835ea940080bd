"""Plant faults in a copy of this checkout, one at a time, and see whether the tests catch them.

`python tests/planted_faults.py` plants all of planted_faults.toml; words choose those whose text
holds one of them: `python tests/planted_faults.py anchors roster`. Ends with 1 if one is missed.
docs/testing.md says more.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True)
class Fault:
    """A fault: what it does, the file, the text that it replaces, and the tests that must fail."""

    says: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def planted_in(self, folder: Path) -> str:
        """Return the file's text with the fault in it.

        Raises
        ------
        ValueError
            If the text to replace is not there, or there twice.
        """
        before = (folder / self.file).read_text(encoding="utf-8")
        if (times := before.count(self.old)) != 1:
            raise ValueError(f"{self.says}: {self.file} holds this text {times} times: {self.old}")
        return before.replace(self.old, self.new)


def planted_faults() -> list[Fault]:
    """Return the list's faults."""
    listed = tomllib.loads(LIST.read_text(encoding="utf-8"))["fault"]
    return [Fault(**{**fault, "tests": tuple(fault["tests"])}) for fault in listed]


def run_tests(folder: Path, tests: Iterable[str]) -> subprocess.CompletedProcess[str]:
    """Run the tests of a copy until one fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *sorted(set(tests))],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def main(words: list[str]) -> int:
    """Plant the chosen faults and print what became of each."""
    faults = [f for f in planted_faults() if not words or any(w in f.says for w in words)]
    missed = 0
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "copy"
        ignored = shutil.ignore_patterns(".git", ".*_cache", ".hypothesis", "__pycache__", "*venv*")
        shutil.copytree(REPOSITORY, copy, ignore=ignored)
        for fault in faults:
            fault.planted_in(copy)
        sound = run_tests(copy, (test for fault in faults for test in fault.tests))
        if sound.returncode:
            print(sound.stdout + sound.stderr, "The tests fail without any fault.", sep="\n")
            return 2
        for fault in faults:
            path, start = copy / fault.file, time.perf_counter()
            sane = path.read_text(encoding="utf-8")
            path.write_text(fault.planted_in(copy), encoding="utf-8")
            done = run_tests(copy, fault.tests)
            path.write_text(sane, encoding="utf-8")
            if done.returncode not in {0, 1}:
                print(done.stdout + done.stderr, f"{fault.says}: the tests did not run.", sep="\n")
                return 2
            missed += done.returncode == 0
            result = "caught" if done.returncode else "MISSED"
            print(f"{result}  {time.perf_counter() - start:5.1f} s  {fault.says}", flush=True)
    print(f"{len(faults) - missed} of {len(faults)} faults caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
