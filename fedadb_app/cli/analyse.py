"""`fedadb analyse`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedadb_app.analysis.open_run import open_run
from fedadb_app.cli.console import err, fail, one_sentence, out
from fedadb_app.cli.options import words


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
    from fedadb_app.analysis.readouts import make  # here, so that other commands start sooner

    with one_sentence():
        run = open_run(folder.expanduser().absolute(), data_dir)
        read_outs, problems, places = 0, 0, dict[str, None]()
        for made in make(run, words(what), server_round):
            read_outs += 1
            if made.problem is not None:
                problems += 1
                err.print(f"[red]{made.name}:[/] {escape(str(made.problem))}", soft_wrap=True)
                continue
            for what_it_is, value in made.numbers.items():
                out.print(f"{made.name}: {what_it_is} {value:.4g}", soft_wrap=True, markup=False)
            places[str(made.folder)] = None
        if places:
            out.print(f"pictures and tables: {', '.join(places)}", soft_wrap=True, markup=False)
        if problems:
            fail(f"{problems} of {read_outs} read-outs could not be made")
