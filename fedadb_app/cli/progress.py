"""The progress of a run, as a terminal shows it."""

import math
from pathlib import Path
from threading import Event

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from fedadb_app.cli.console import err
from fedadb_app.flower_run import FlowerRun, Stopped
from fedadb_app.runs.summary import accuracy_summary, read_summary
from fedadb_app.runs.tables import read_accuracies

_COLUMNS = (  # on a narrow screen the name and the bar give way
    TextColumn("{task.description}", table_column=Column(ratio=2, no_wrap=True)),
    BarColumn(None, table_column=Column(ratio=1)),
    TextColumn("{task.percentage:>3.0f} %"),
    TimeRemainingColumn(),
    TextColumn("{task.fields[note]}"),
)


def progress_bars() -> Progress:
    """Return the display of a command's runs."""
    # Rich forgets after 30 s how fast a task was, which may be before the first round has ended.
    return Progress(*_COLUMNS, console=err, expand=True, speed_estimate_period=math.inf)


def watch(
    progress: Progress,
    flower_run: FlowerRun,
    folder: Path,
    rounds: int,
    name: str,
    parent: TaskID | None = None,
    stop: Event | None = None,
) -> tuple[str, str]:
    """Show a run's rounds as they end; stop the run when interrupted, or when `stop` is set.

    A `parent` task counts runs; it advances by the share of rounds done.
    """
    task = progress.add_task(name, total=rounds, note="starting")
    begun, shown = False, 0

    def look() -> None:
        nonlocal begun, shown
        if stop is not None and stop.is_set():
            raise Stopped
        accuracies, done = read_accuracies(folder)
        if not begun and read_summary(folder):
            # The time left follows from what comes after this: not from how long Flower took to
            # start, nor from the rounds that a resumed run begins with.
            progress.advance(task, done)
            begun = True
        best = accuracy_summary(accuracies)["best5_accuracy"]
        note = f"accuracy {accuracies[-1]:.2f} %, best five {best:.2f} %" if accuracies else ""
        progress.update(task, completed=done, note=note or "starting")
        if parent is not None:
            progress.advance(parent, (done - shown) / rounds)
            shown = done

    try:
        status = flower_run.wait(folder, look)
    except (KeyboardInterrupt, Stopped):
        progress.update(task, note="stopping")
        flower_run.stop()
        raise
    look()
    if parent is not None:
        progress.advance(parent, 1 - shown / rounds)  # it may have ended before its last round
        progress.remove_task(task)
    return status
