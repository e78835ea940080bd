"""What commands that make many runs share: the list of a dry run."""

from pathlib import Path

from rich.table import Table

from fedadb_app.cli.console import out
from fedadb_app.comparison.estimate import estimates, in_words
from fedadb_app.comparison.grid import Grid


def list_runs(folder: Path, grid: Grid, jobs: int) -> None:
    """Print which runs there are, which are complete, and how long the others may take."""
    table = Table("cell", "run", "state", "estimated")
    plan = estimates(folder, grid)
    for number, planned in enumerate(plan, start=1):
        state = "complete" if planned.complete else "missing"
        table.add_row(str(number), planned.cell.name, state, in_words(planned.seconds))
    out.print(table)
    missing = [planned.seconds for planned in plan if not planned.complete]
    known = [seconds for seconds in missing if seconds is not None]
    total = in_words(sum(known) / min(jobs, len(missing) or 1)) if known else "unknown"
    unknown = len(missing) - len(known)
    out.print(
        f"{len(missing)} of {len(plan)} runs are missing; with {jobs} side by side: {total}"
        + (f", and {unknown} runs of unknown length" if known and unknown else "")
        + (f": no run of this {grid.kind} is complete yet" if missing and not known else "")
    )
