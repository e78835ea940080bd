"""`fedadb report` and `fedadb analyse`: what a run's folder says."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedadb_app.analysis.runs import SavedRun, read_configuration
from fedadb_app.cli.common import TITLES, err, fail, one_sentence, out, words
from fedadb_app.errors import ConfigError, DataError, FedADBError
from fedadb_app.flower import flatten
from strategies import read_run_config
from strategies.fedadb import FedADBParams


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run or of a comparison.")],
    output: Annotated[
        Path | None, typer.Option(help="The HTML file; default: report.html in that folder.")
    ] = None,
) -> None:
    """Write one HTML page about a run or a comparison, finished or not."""
    from fedadb_app.report.pages import write_report  # here, so that other commands start sooner

    with one_sentence():
        folder = folder.expanduser().absolute()
        path = (output or folder / "report.html").expanduser().absolute()
        write_report(folder, TITLES, path)
        out.print(f"report: {path}", soft_wrap=True, markup=False)


def analyse(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.")],
    server_round: Annotated[
        int | None,
        typer.Option("--round", help="A round whose model is kept; default: the last."),
    ] = None,
    what: Annotated[
        str, typer.Option(help="hessian, embeddings, anchors, drift; default: all that apply.")
    ] = "",
) -> None:
    """Look into a run's global model: sharpness, its anchors among real images, drift."""
    from fedadb_app.analysis.readouts import READ_OUTS, applicable  # as above

    with one_sentence():
        run = open_run(folder.expanduser().absolute())
        chosen = run.chosen(server_round)
        names = words(what) or applicable(run)
        if unknown := [name for name in names if name not in READ_OUTS]:
            raise ConfigError(f"--what {unknown[0]}: choose among {', '.join(READ_OUTS)}")
        target = run.folder / "analysis" / f"round{chosen:04}"
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{target} cannot be written to: {error.strerror}") from error
        problems = 0
        for name in names:
            try:
                numbers = READ_OUTS[name](run, chosen, target)
            except FedADBError as error:  # the other read-outs are worth having
                problems += 1
                err.print(f"[red]{name}:[/] {escape(str(error))}", soft_wrap=True)
                continue
            for what_it_is, value in numbers.items():
                out.print(f"{name}: {what_it_is} {value:.4g}", soft_wrap=True, markup=False)
        out.print(f"pictures and tables: {target}", soft_wrap=True, markup=False)
        if problems:
            fail(f"{problems} of {len(names)} read-outs could not be made")


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
    settings = None
    if isinstance(params, FedADBParams) and params.use_anchors:
        settings = params.anchor_settings()
    return SavedRun(folder, config, method.heads, settings)
