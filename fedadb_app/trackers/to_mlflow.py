"""A run in MLflow: parameters, metrics over rounds, tags and files, through its tracking server."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from fedadb_app.errors import ConfigError, TrackerError
from fedadb_app.trackers.handed import Handed, library

DIGEST = "fedadb.digest"
"""The tag by which a run is found again."""

_STATUS = {"completed": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
_MOST_METRICS, _MOST_PARAMETERS = 1000, 100  # that MLflow takes in one request


def log_to_mlflow(handed: Handed, tracking_uri: str, experiment: str) -> str:
    """Log a run, whole or not at all; return its address.

    Parameters
    ----------
    handed : Handed
        The run.
    tracking_uri, experiment : str
        As MLflow knows them; empty for what ``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME``
        say, the latter's default being MLflow's own.

    Raises
    ------
    ConfigError
        If MLflow is not installed, no server is named, or the experiment has this run already.
    TrackerError
        If the server cannot be reached or refuses something.
    """
    address = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "")
    if not address:
        raise ConfigError(
            "--to mlflow needs a tracking server: give --tracking-uri, as in "
            "--tracking-uri http://localhost:5000, or set MLFLOW_TRACKING_URI"
        )
    mlflow = library("mlflow")
    # By default a server that is not there is asked for minutes, and each run's end is printed.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    name = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
    try:
        return _logged(mlflow, mlflow.MlflowClient(address), handed, address, name)
    except mlflow.exceptions.MlflowException as error:
        raise TrackerError(f"MLflow at {address}: {' '.join(str(error).split())}") from error


def _logged(mlflow: Any, client: Any, handed: Handed, address: str, name: str) -> str:  # noqa: ANN401
    found = client.get_experiment_by_name(name)
    experiment = found.experiment_id if found else client.create_experiment(name)
    same = client.search_runs([experiment], f"tags.`{DIGEST}` = '{handed.digest}'", max_results=1)
    for run in same:
        raise ConfigError(
            f'{handed.folder}: experiment "{name}" at {address} has this run already, as '
            f"{run.info.run_id}; delete it there to log it again"
        )
    end = int(1000 * (handed.folder / "summary.json").stat().st_mtime)
    tags = {**handed.tags, DIGEST: handed.digest}
    if handed.commit:
        tags["mlflow.source.git.commit"] = handed.commit
    start = end - int(1000 * handed.numbers["seconds"])
    run_id = client.create_run(experiment, start, tags, handed.folder.name).info.run_id
    try:
        entities = mlflow.entities
        parameters = [entities.Param(key, str(v)) for key, v in handed.parameters.items()]
        for some in _parts(parameters, _MOST_PARAMETERS):
            client.log_batch(run_id, params=some)
        points = [entities.Metric(tag, v, end, t) for t, tag, v in handed.series]
        points += [entities.Metric(f"summary/{n}", v, end, 0) for n, v in handed.numbers.items()]
        for some in _parts(points, _MOST_METRICS):
            client.log_batch(run_id, metrics=some)
        for path in handed.files:
            client.log_artifact(run_id, str(path))
        client.set_terminated(run_id, _STATUS[handed.tags["status"]], end)
    except BaseException:
        client.delete_run(run_id)
        raise
    return f"{address.rstrip('/')}/#/experiments/{experiment}/runs/{run_id}"


def _parts(whole: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (whole[start : start + size] for start in range(0, len(whole), size))
