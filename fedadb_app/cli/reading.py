"""`fedadb report` and `fedadb analyse`: what a run's folder says."""

from pathlib import Path
from typing import Annotated

import typer

from fedadb_app.analysis.runs import SavedRun, read_configuration
from fedadb_app.cli.common import one_sentence, out
from fedadb_app.flower import flatten
from fedadb_app.report.pages import write_report
from strategies import METHODS, read_run_config
from strategies.fedadb import FedADBParams


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run or of a comparison.")],
    output: Annotated[
        Path | None, typer.Option(help="The HTML file; default: report.html in that folder.")
    ] = None,
) -> None:
    """Write one HTML page about a run or a comparison, finished or not."""
    with one_sentence():
        folder = folder.expanduser().absolute()
        path = (output or folder / "report.html").expanduser().absolute()
        write_report(folder, {name: method.title for name, method in METHODS.items()}, path)
        out.print(f"report: {path}", soft_wrap=True, markup=False)


def open_run(folder: Path) -> SavedRun:
    """Open a run's folder for read-outs.

    Raises
    ------
    DataError
        If it holds no run.
    ConfigError
        If its configuration is not one of this version.
    """
    config, method, params = read_run_config(flatten(read_configuration(folder)))
    settings = params.anchor_settings() if isinstance(params, FedADBParams) else None
    return SavedRun(folder, config, method.heads, settings)
