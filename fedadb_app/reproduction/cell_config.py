"""The run configuration of a single run of a table or figure, as a file for `flwr run`."""

from collections.abc import Mapping, Sequence
from typing import Any

import tomli_w

from fedadb_app.comparison.grid import Cell, Grid
from fedadb_app.config import Scalar
from fedadb_app.errors import ConfigError
from fedadb_app.reproduction.entries import Entry, Study, names_by_kind
from fedadb_app.reproduction.plan import Plan
from fedadb_app.reproduction.settings import DATASETS
from fedadb_app.reproduction.tables import title_of


def only_cell_text(plans: Sequence[Plan]) -> str:
    """Return the file of the only run that plans consist of.

    Raises
    ------
    ConfigError
        If they consist of several.
    """
    runs = {
        (entry.setting.name, cell): (plan, entry)
        for plan in reversed(plans)  # what two of them share is the first one's
        for entry in reversed(plan.study.entries)
        for cell in plan.cells(entry)
    }
    if len(runs) > 1:
        found = names_by_kind([plan.study for plan in plans]).values()
        seeds = sorted({cell.seed for _, cell in runs})
        choices = [f"--only {' or '.join(names)}" for names in found if len(names) > 1]
        choices += [f"--seeds {' or '.join(map(str, seeds))}"] if len(seeds) > 1 else []
        raise ConfigError(
            f"--print-config prints one run, but these are {len(runs)}; "
            f"choose one by {', by '.join(choices) or 'naming one item'}"
        )
    (((setting, cell), (plan, entry)),) = runs.items()
    return cell_text(plan.study, entry, cell, plan.grids[setting])


def cell_text(study: Study, entry: Entry, cell: Cell, grid: Grid) -> str:
    """Return a run's TOML: what it is, how to run it, what the paper reports, the values."""
    setting = entry.setting
    skew, in_name = f", alpha = {cell.alpha:g}", f"-alpha{cell.alpha:g}"
    if entry.by_domain:
        skew = in_name = ""
    file = f"{setting.name}-{cell.strategy}{in_name}-seed{cell.seed}.toml"
    where = f"{DATASETS[setting.dataset]}{skew}, seed {cell.seed}, {setting.scenario}"
    lines = [f"{study.heading}, {title_of(entry.row)}: {where}."]
    if study.differences:
        lines.append(f"Otherwise than in the paper: {study.differences}")
    if entry.reported is not None:
        spread = entry.reported.deviation
        shown = f"{entry.reported.value:.2f}" + ("" if spread is None else f" ± {spread:.2f}")
        lines.append(f"The paper reports {shown} (five best rounds, test accuracy in %).")
    lines += [
        f"Save it as {file}, and in the app's folder:",
        f"flwr run . --stream --run-config {file} \\",
        f"  --federation-config '{grid.simulation.arguments()}'",
    ]
    comment = "".join(f"# {line}\n" for line in lines)
    return f"{comment}\n{tomli_w.dumps(_nested(values_of(entry, cell, grid)))}"


def values_of(entry: Entry, cell: Cell, grid: Grid) -> dict[str, Scalar]:
    """Return all that a run sets, as flat keys, but for where its results go."""
    values: dict[str, Scalar] = {"strategy": cell.strategy, "alpha": cell.alpha, "seed": cell.seed}
    if entry.by_domain:
        del values["alpha"]
    return {**values, **grid.values}


def _nested(values: Mapping[str, Scalar]) -> dict[str, Any]:
    """Turn dotted keys into tables."""
    plain: dict[str, Any] = {key: value for key, value in values.items() if "." not in key}
    for key, value in values.items():
        table, dot, own = key.partition(".")
        if dot:
            plain.setdefault(table, {})[own] = value
    return plain
