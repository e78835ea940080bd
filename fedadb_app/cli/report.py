"""`fedadb report`."""

from pathlib import Path
from typing import Annotated

import typer

from fedadb_app.cli.console import one_sentence, out


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run or of a comparison.")],
    output: Annotated[
        Path | None, typer.Option(help="The HTML file; default: report.html in that folder.")
    ] = None,
) -> None:
    """Write one HTML page about a run or a comparison, finished or not."""
    from fedadb_app.report.write_report import (
        write_report,  # here, so that other commands start sooner
    )

    with one_sentence():
        folder = folder.expanduser().absolute()
        path = (output or folder / "report.html").expanduser().absolute()
        write_report(folder, path)
        out.print(f"report: {path}", soft_wrap=True, markup=False)
