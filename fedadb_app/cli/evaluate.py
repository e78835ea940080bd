"""`fedadb evaluate`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table as Shown

from fedadb_app.cli.console import one_sentence, out
from fedadb_app.runs.tables import Table


def evaluate(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.")],
    against: Annotated[
        Path | None,
        typer.Option(help="Another run on the same test images: differences, McNemar's test."),
    ] = None,
    sensitivity: Annotated[
        float | None,
        typer.Option(
            help="Two classes: choose the threshold with this sensitivity on the validation part."
        ),
    ] = None,
) -> None:
    """Print and write a run's test metrics with 95 % bootstrap intervals."""
    from fedadb_app.analysis import evaluated  # here, so that other commands start sooner
    from fedadb_app.analysis.table_files import write_table
    from fedadb_app.analysis.uncertainty import RESAMPLES

    with one_sentence():
        run = evaluated.open_evaluated(folder.expanduser().absolute())
        tables: dict[str, tuple[str, Table]] = {}
        if sensitivity is not None:
            caption = "Two classes at a threshold that was chosen on the validation part (%)"
            tables[evaluated.THRESHOLDS] = caption, evaluated.thresholds(run, sensitivity)
        if against is not None:
            other = evaluated.open_evaluated(against.expanduser().absolute())
            name = other.folder.name
            caption = f"Difference to {name} in the same resamples"
            tables[f"against-{name}.csv"] = caption, evaluated.differences(run, other)
            caption = f"Test images that only this model or only that of {name} classifies right"
            tables[f"mcnemar-{name}.csv"] = caption, evaluated.mcnemar_tests(run, other)
        drawn = f"{RESAMPLES} resamples of {run.units}"
        caption = f"Test metrics with 95 % intervals, {drawn}"
        tables = {evaluated.INTERVALS: (caption, evaluated.intervals(run)), **tables}
        for name, (caption, table) in tables.items():
            write_table(table, caption, run.folder / name)
            _show(caption, table)
        names = ", ".join(f"{name} (.tex)" for name in tables)
        out.print(f"tables: {run.folder}: {names}", soft_wrap=True, markup=False)


def _show(caption: str, table: Table) -> None:
    """Print a table, numbers flush right."""
    shown = Shown(title=escape(caption), title_justify="left", box=None, pad_edge=False)
    for name in table.header:
        text = name in ("model", "metric", "class")
        shown.add_column(name, justify="left" if text else "right", overflow="fold")
    for row in table.rows:
        shown.add_row(*map(escape, row))
    out.print(shown)
