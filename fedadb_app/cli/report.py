"""`fedadb report` and `fedadb analyse`: what a run's folder says."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedadb_app.analysis.runs import SavedRun
from fedadb_app.assignments import flatten
from fedadb_app.cli.common import err, fail, one_sentence, out, words
from fedadb_app.errors import ConfigError, DataError, FedADBError
from fedadb_app.runs.reader import read_configuration
from strategies.fedadb import FedADBParams
from strategies.registry import read_run_config


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
        write_report(folder, path)
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
    data_dir: Annotated[
        Path | None, typer.Option(help="Where the data set lies now; default: as for the run.")
    ] = None,
) -> None:
    """Look into a run's global model: sharpness, its anchors among real images, drift."""
    from fedadb_app.analysis.readouts import DRIFT, READ_OUTS, applicable  # as above

    with one_sentence():
        run = open_run(folder.expanduser().absolute(), data_dir)
        names = words(what) or applicable(run)
        if unknown := [name for name in names if name not in READ_OUTS]:
            raise ConfigError(f"--what {unknown[0]}: choose among {', '.join(READ_OUTS)}")
        chosen = 0 if set(names) == {DRIFT} else run.chosen(server_round)
        folder = run.folder / "analysis"
        targets = {n: folder if n == DRIFT else folder / f"round{chosen:04}" for n in names}
        problems, places = 0, dict[str, None]()
        for name, target in targets.items():
            try:
                target.mkdir(parents=True, exist_ok=True)
                numbers = READ_OUTS[name](run, chosen, target)
            except OSError as error:  # the others could not be written either
                raise DataError(f"{target} cannot be written to: {error}") from error
            except FedADBError as error:  # the other read-outs are worth having
                problems += 1
                err.print(f"[red]{name}:[/] {escape(str(error))}", soft_wrap=True)
                continue
            for what_it_is, value in numbers.items():
                out.print(f"{name}: {what_it_is} {value:.4g}", soft_wrap=True, markup=False)
            places[str(target)] = None
        if places:
            out.print(f"pictures and tables: {', '.join(places)}", soft_wrap=True, markup=False)
        if problems:
            fail(f"{problems} of {len(targets)} read-outs could not be made")


def open_run(folder: Path, data_dir: Path | None = None) -> SavedRun:
    """Open a run's folder for read-outs.

    Parameters
    ----------
    folder : Path
        Of the run.
    data_dir : Path or None
        Where its data set lies now: official files, or the file or folder that ``dataset`` names;
        None where the run found it.

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
    if data_dir is not None:
        home, own = data_dir.expanduser().absolute(), Path(config.dataset).expanduser()
        there = {"data_dir": str(home)}
        if own.is_absolute():
            there["dataset"] = str(home / own.name)
        config = config.model_copy(update=there)
    return SavedRun(folder, config, method.heads, settings)
