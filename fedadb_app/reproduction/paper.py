"""What the paper reports: Tables 1 to 6, one number a line in ``paper.csv``.

Table 2 has no space there between rounds and speed-up ("27413.7"); the rounds are those for which
rounds / (FedADB's rounds) is the speed-up.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Reported:
    """A number of the paper, and its deviation over three seeds where that is reported."""

    value: float
    deviation: float | None


Place = tuple[str, str, str, str]
"""Item, scenario, row, column."""


@cache
def reported() -> Mapping[Place, Reported]:
    """Return every number of the paper's tables, by where it stands."""
    with Path(__file__).with_name("paper.csv").open(newline="") as file:
        return {
            (row["item"], row["scenario"], row["row"], row["column"]): Reported(
                float(row["value"]), float(row["deviation"]) if row["deviation"] else None
            )
            for row in csv.DictReader(file)
        }
