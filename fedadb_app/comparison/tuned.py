"""What `fedadb tune` has chosen, and how much each method's value depends on it: `--tuned FILE`."""

import csv
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedadb_app.assignments import flatten
from fedadb_app.comparison.grid import Grid
from fedadb_app.config import Scalar
from fedadb_app.errors import ConfigError
from fedadb_app.metrics import BETTER
from fedadb_app.runs.atomic import replace
from fedadb_app.runs.record import cell
from fedadb_app.runs.tables import Table, read_table
from fedadb_app.runs.text_files import read
from strategies.registry import METHODS, method_title

TRIALS, TUNED = "trials.csv", "tuned.toml"
TRIAL_COLUMNS = ("method", "trial", "state", "rounds", "values", "metric", "value", "chosen")
"""Columns of ``trials.csv``; beside them the best value by each rung, and why a trial failed."""

TUNED_FOR = "tuned-for"
"""The table of ``tuned.toml`` that says for what question its values were chosen."""

_QUESTION = (
    *("dataset", "classes", "image-shape", "partition", "alpha", "classes-per-client"),
    *("feature-noise", "model", "weights", "norm", "fraction-train", "local-epochs"),
    *("batch-size", "optimizer"),
)


@dataclass(frozen=True)
class Tuned:
    """A file of tuned values, with the history of how they were chosen.

    Attributes
    ----------
    path : Path
        Of the file.
    methods : Mapping[str, Mapping[str, Scalar]]
        By method: its values.
    made_for : Mapping[str, Scalar]
        The data, the model, and whatever else values depend on.
    trials : str
        The text of ``trials.csv`` beside it.
    """

    path: Path
    methods: Mapping[str, Mapping[str, Scalar]]
    made_for: Mapping[str, Scalar]
    trials: str

    def own(
        self, strategies: Sequence[str], also: Mapping[str, Mapping[str, Scalar]]
    ) -> dict[str, dict[str, Scalar]]:
        """Return what each method of a comparison has for itself; what the user says comes last.

        Raises
        ------
        ConfigError
            If a method has no tuned values, and the user gives none.
        """
        known = self.methods.keys() | also.keys()
        if lacking := [name for name in strategies if name in METHODS and name not in known]:
            raise ConfigError(
                f"--tuned {self.path} has no values for {lacking[0]}: tune it, too, leave it out, "
                f"or say what it has, as in -c '{lacking[0]}: learning-rate=0.01'"
            )
        names = [name for name in strategies if name in known]
        others = {name: dict(table) for name, table in also.items() if name not in names}
        return others | {
            name: {**self.methods.get(name, {}), **also.get(name, {})} for name in names
        }

    def check(self, grid: Grid) -> None:
        """Check that its values were chosen for what a comparison compares.

        Raises
        ------
        ConfigError
            If they were not.
        """
        for alpha in grid.alphas:
            asked = question(grid, alpha)
            if other := [key for key in self.made_for if self.made_for[key] != asked.get(key)]:
                key = other[0]
                raise ConfigError(
                    f"--tuned {self.path} was made for {key}={self.made_for[key]}, and this "
                    f"comparison has {asked.get(key)}: if its values are to be taken all the "
                    f"same, give them as -c {self.path}"
                )

    def keep(self, folder: Path) -> None:
        """Put the history into a comparison's folder, for its tables and its page."""
        replace(folder / TRIALS, self.trials.encode())


def question(grid: Grid, alpha: float) -> dict[str, Scalar]:
    """Return what values depend on: the data and who holds it, the model, a round's training."""
    values = {key: grid.effective[key] for key in _QUESTION}
    return {**values, "alpha": alpha, "num-supernodes": grid.simulation.num_supernodes}


def read_tuned(path: Path) -> Tuned:
    """Read a file that `fedadb tune` has written, and the history beside it.

    Raises
    ------
    ConfigError
        If it is not there or another file, or has no history beside it.
    """
    try:
        content = tomllib.loads(path.read_text())
        made_for = dict(content[TUNED_FOR])
        methods = {name: flatten(table) for name, table in content["methods"].items()}
        trials = (path.parent / TRIALS).read_text()
        parse_trials(trials)
    except KeyError as error:
        raise ConfigError(
            f"--tuned {path} is no file of `fedadb tune`, it lacks {error}; values of your own "
            f"go into -c"
        ) from error
    except (OSError, ValueError, AttributeError, csv.Error) as error:
        raise ConfigError(f"--tuned {path} cannot be read: {error}") from error
    return Tuned(path, methods, made_for, trials)


def parse_trials(text: str) -> Table:
    """Parse ``trials.csv``.

    Raises
    ------
    ValueError, csv.Error
        If it lacks a column, or a value is no number.
    """
    table = read_table(text)
    table.require(TRIAL_COLUMNS)
    table.numbers("value")
    table.numbers("rounds")
    return table


def read_trials(folder: Path) -> Table | None:
    """Return the history of the values that a folder's methods have; None where none were tuned.

    Raises
    ------
    DataError
        If it is damaged.
    """
    return read(folder / TRIALS, parse_trials)


def trials_of(table: Table) -> dict[str, list[dict[str, str]]]:
    """Return each method's trials, in their order."""
    found: dict[str, list[dict[str, str]]] = {}
    for row in table.rows:
        trial = dict(zip(table.header, row, strict=True))
        found.setdefault(trial["method"], []).append(trial)
    return found


SENSITIVITY = (
    "Best value on the validation part in each method's trials, all with the same number of "
    "trials and of rounds at most; default: with the values that nobody tuned. Of a trial that "
    "was ended early the best until then; one that failed has none."
)


def sensitivity(table: Table) -> Table:
    """Return per method how much depends on its values: default, worst, median and best trial."""
    rows = []
    for name, trials in trials_of(table).items():
        known = [float(t["value"]) for t in trials if t["value"]]
        better = BETTER.get(trials[0]["metric"].removeprefix("val-"), 1)
        worst, best = (min, max) if better > 0 else (max, min)
        of_default = trials[0]["value"]
        numbers = [float(of_default) if of_default else None]
        numbers += [worst(known), statistics.median(known), best(known)] if known else [None] * 3
        rows.append(
            [
                method_title(name),
                trials[0]["metric"],
                str(len(trials)),
                *(str(sum(t["state"] == state for t in trials)) for state in ("ended", "failed")),
                str(sum(int(t["rounds"]) for t in trials)),
                *("–" if number is None else cell("", number) for number in numbers),
            ]
        )
    states = ("trials", "ended early", "failed", "rounds in all")
    return Table(["method", "metric", *states, "default", "worst", "median", "best"], rows)
