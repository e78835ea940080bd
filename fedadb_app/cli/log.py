"""`fedadb log`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import typer

from fedadb_app.cli.console import one_sentence, out
from fedadb_app.errors import ConfigError
from fedadb_app.report.write_report import write_report
from fedadb_app.trackers.handed import read_handed
from fedadb_app.trackers.to_mlflow import log_to_mlflow
from fedadb_app.trackers.to_tensorboard import log_to_tensorboard
from fedadb_app.trackers.to_wandb import log_to_wandb

_OPTIONS: Mapping[str, Sequence[str]] = {
    "mlflow": ("--tracking-uri", "--experiment", "--models"),
    "wandb": ("--project", "--models"),
    "tensorboard": (),
}


def log(
    folder: Annotated[Path, typer.Argument(help="The folder of a run that has ended.")],
    to: Annotated[
        Literal["mlflow", "wandb", "tensorboard"],
        typer.Option(help="The tracker; each is an extra of the same name."),
    ],
    tracking_uri: Annotated[
        str, typer.Option(help="MLflow's server; default: $MLFLOW_TRACKING_URI.")
    ] = "",
    experiment: Annotated[
        str, typer.Option(help="MLflow's experiment; default: $MLFLOW_EXPERIMENT_NAME, or Default.")
    ] = "",
    project: Annotated[
        str, typer.Option(help="W&B's project, or entity/project; default: $WANDB_PROJECT.")
    ] = "",
    models: Annotated[
        bool, typer.Option("--models", help="Also hand over the run's model files.")
    ] = False,
) -> None:
    """Hand a run over to MLflow, Weights & Biases or TensorBoard, once."""
    with one_sentence(), TemporaryDirectory() as temporary:
        given = {
            "--tracking-uri": tracking_uri,
            "--experiment": experiment,
            "--project": project,
            "--models": models,
        }
        for option, value in given.items():
            if value and option not in _OPTIONS[to]:
                known = ", ".join(_OPTIONS[to]) or "none of these"
                raise ConfigError(f"{option} says nothing to {to}, which takes {known}")
        run = read_handed(folder.expanduser().absolute(), models)
        if to == "tensorboard":
            where = log_to_tensorboard(run)
        else:
            page = Path(temporary) / "report.html"
            write_report(run.folder, page)
            run = replace(run, files=[page, *run.files])
            if to == "mlflow":
                where = log_to_mlflow(run, tracking_uri, experiment)
            else:
                where = log_to_wandb(run, project)
        out.print(f"logged: {where}", soft_wrap=True, markup=False)
