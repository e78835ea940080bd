"""A run in Weights & Biases, online or as a folder that ``wandb sync`` sends later."""

import os
import shutil
from itertools import groupby
from pathlib import Path
from typing import Any

from fedadb_app.errors import ConfigError, TrackerError
from fedadb_app.trackers.handed import Handed, library


def log_to_wandb(handed: Handed, project: str) -> str:
    """Log a run, under an id that is its own; return its address or, offline, its folder.

    Parameters
    ----------
    handed : Handed
        The run; what W&B keeps on this machine lies in its folder.
    project : str
        ``project`` or ``entity/project``; empty for what ``WANDB_PROJECT`` says.

    Raises
    ------
    ConfigError
        If W&B is not installed or is switched off, or the run has been logged from this folder.
    TrackerError
        If W&B cannot be reached or does not take it.
    """
    if os.environ.get("WANDB_MODE") == "disabled":
        raise ConfigError(
            "WANDB_MODE=disabled is set, so that W&B would take nothing: unset it, or set it to "
            "offline"
        )
    wandb = library("wandb")
    identity = handed.digest[:16]
    for before in _kept(handed, identity):
        raise ConfigError(
            f"{handed.folder}: logged already as W&B run {identity}; {before} is from then, remove "
            f"it (and the run at W&B) to log it again"
        )
    try:
        return _logged(wandb, handed, identity, project)
    except wandb.Error as error:
        for partly in _kept(handed, identity):
            shutil.rmtree(partly, ignore_errors=True)
        raise TrackerError(f"W&B: {' '.join(str(error).split())}") from error


def _kept(handed: Handed, identity: str) -> list[Path]:
    return sorted((handed.folder / "wandb").glob(f"*run-*-{identity}"))


def _logged(wandb: Any, handed: Handed, identity: str, project: str) -> str:  # noqa: ANN401
    entity, _, name = project.rpartition("/")
    run = wandb.init(
        id=identity,
        resume="never",
        name=handed.folder.name,
        project=name or None,
        entity=entity or None,
        dir=handed.folder,
        config={**handed.parameters, "run": dict(handed.tags)},
        tags=[handed.tags[fact] for fact in ("strategy", "status") if fact in handed.tags],
        # This process, its Git checkout and its machine are not those of the run.
        settings=wandb.Settings(
            console="off", silent=True, disable_git=True, x_disable_meta=True, x_disable_stats=True
        ),
    )
    by_round = sorted(handed.series, key=lambda point: point[0])
    for number, points in groupby(by_round, key=lambda point: point[0]):
        run.log({tag: value for _, tag, value in points}, step=number)
    run.summary.update({f"summary/{name}": value for name, value in handed.numbers.items()})
    kept = wandb.Artifact(f"run-{identity}", type="run")
    for path in handed.files:
        kept.add_file(str(path), name=path.name)
    run.log_artifact(kept)
    folder = Path(run.dir).parent
    sent = f"{folder}; `wandb sync` with this folder sends it" if run.offline else run.url
    run.finish(exit_code=0 if handed.completed else 1)
    return str(sent)
