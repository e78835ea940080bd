"""A run of a SuperLink: what it was asked for, and how it ended."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path

from helpers import REPOSITORY, serve

from fedadb_app.assignments import app_defaults, parse_assignments


@dataclass(frozen=True)
class Outcome:
    """How a run ended: Flower's status and details, and the folder it left (None: no folder)."""

    run_id: str
    status: str
    details: str
    folder: Path | None

    def summary(self) -> dict[str, object]:
        return json.loads(self.file("summary.json").read_text())

    def partition(self) -> dict[str, object]:
        return json.loads(self.file("partition.json").read_text())

    def rounds(self) -> list[dict[str, str]]:
        with self.file("rounds.csv").open() as file:
            return list(csv.DictReader(file))

    def column(self, name: str) -> list[str]:
        return [row[name] for row in self.rounds()]

    def trained(self) -> list[str]:
        """Which clients of the rehearsal app trained when, as sorted client@round."""
        return sorted((self.file("..") / "trained.txt").read_text().split())

    def file(self, name: str) -> Path:
        assert self.folder is not None, f"the run left no folder: {self.status}, {self.details}"
        return self.folder / name


@dataclass(frozen=True)
class Submitted:
    """A run that has been started, and where its output-dir is."""

    run_id: str
    output: Path

    def folder(self) -> Path | None:
        """Return the run's folder, once it is there."""
        found = [path for path in self.output.iterdir() if path.is_dir()]
        return found[0] if found else None

    def has_begun(self, key: str) -> bool:
        """Whether the rehearsal app's client@round has begun to train."""
        trained = self.output / "trained.txt"
        return trained.exists() and key in trained.read_text().split()

    def finished_rounds(self) -> int:
        folder = self.folder()
        if folder is None or not (folder / "rounds.csv").exists():
            return 0
        return len((folder / "rounds.csv").read_text().splitlines()) - 1

    def summary_status(self) -> str:
        folder = self.folder()
        if folder is None or not (folder / "summary.json").exists():
            return ""
        return json.loads((folder / "summary.json").read_text())["status"]


def in_one_process(config: str, clients: int, output: Path) -> Outcome:
    """Run the app as the default tests do: the clients one after another, without Flower.

    What Flower's processes find, however many there are, must be the same to the bit.
    """
    values = {**app_defaults(REPOSITORY), **parse_assignments(config), "output-dir": str(output)}
    serve(values, clients)
    (folder,) = output.iterdir()
    return Outcome("", "", "", folder)
