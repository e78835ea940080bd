"""What a tuning leaves: `trials.csv`, `tuned.toml` for `compare --tuned`, and `tuning.md`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedadb_app.analysis.table_files import markdown
from fedadb_app.assignments import as_assignments
from fedadb_app.comparison.tuned import (
    SENSITIVITY,
    TRIAL_COLUMNS,
    TRIALS,
    TUNED,
    TUNED_FOR,
    question,
    sensitivity,
)
from fedadb_app.config import Scalar
from fedadb_app.runs.atomic import replace
from fedadb_app.runs.record import cell
from fedadb_app.runs.tables import Table, csv_text
from fedadb_app.tuning.plan import Tuning
from fedadb_app.tuning.search import Tried, chosen
from strategies.registry import method_title

Found = Mapping[str, Sequence[Tried]]
"""By method: its trials so far, in their order."""


def write_trials(folder: Path, tuning: Tuning, tried: Found) -> Table:
    """Write ``trials.csv``: every trial, what it tried and what came of it; return the table."""
    by_rung = [f"best_by_{rung}" for rung in tuning.rungs]
    rows = []
    for method, trials in tried.items():
        best = chosen(tuning, trials)
        for t in trials:
            state = "failed" if not t.best else "ended" if t.ended_early else "complete"
            reached = [t.best_by(rung) for rung in tuning.rungs]
            rows.append(
                [
                    *(method, str(t.trial.number), state, str(max(t.best, default=0))),
                    *(as_assignments(t.values), f"val-{tuning.metric}"),
                    *(cell("", t.value) if t.best else "", "yes" if t is best else ""),
                    *("" if value is None else cell("", value) for value in reached),
                    t.reason,
                ]
            )
    table = Table([*TRIAL_COLUMNS, *by_rung, "reason"], rows)
    replace(folder / TRIALS, csv_text([table.header, *table.rows]).encode())
    return table


def write_chosen(folder: Path, tuning: Tuning, tried: Found) -> list[str]:
    """Write ``tuned.toml`` and ``tuning.md``; return the methods of which every trial has failed.

    Of these there are no values in ``tuned.toml``.
    """
    table = write_trials(folder, tuning, tried)
    best = {name: chosen(tuning, trials) for name, trials in tried.items()}
    values = {name: t.values for name, t in best.items() if t is not None}
    content = {
        TUNED_FOR: question(tuning, tuning.alphas[0]),
        "methods": {name: _nested(of_one) for name, of_one in values.items()},
    }
    replace(folder / TUNED, tomli_w.dumps(content).encode())
    rows = [
        [
            method_title(name),
            str(t.trial.number),
            cell("", t.value),
            f"`{as_assignments(t.values)}`",
        ]
        for name, t in best.items()
        if t is not None
    ]
    page = ["# Tuning", "", "The values of each method's best trial; trial 0 is its default.", ""]
    page += markdown(Table(["method", "trial", f"val-{tuning.metric}", "values"], rows))
    page += ["", "## Sensitivity", "", SENSITIVITY, "", *markdown(sensitivity(table)), ""]
    failed = [t for trials in tried.values() for t in trials if not t.best]
    if failed:
        page += ["## Failed", "", *(f"* {t.trial.name}: {t.reason}" for t in failed), ""]
    replace(folder / "tuning.md", "\n".join(page).encode())
    return [name for name, t in best.items() if t is None]


def _nested(values: Mapping[str, Scalar]) -> dict[str, Any]:
    """Return values with those of a method's own table in a table."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        table, _, name = key.rpartition(".")
        (nested.setdefault(table, {}) if table else nested)[name] = value
    return nested
