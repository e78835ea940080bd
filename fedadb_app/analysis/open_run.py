"""Opening a run's folder for read-outs: what its configuration says of its model and anchors."""

from pathlib import Path

from fedadb_app.analysis.runs import SavedRun
from fedadb_app.assignments import flatten
from fedadb_app.runs.reader import read_configuration
from strategies.registry import read_run_config


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
    if data_dir is not None:
        home, own = data_dir.expanduser().absolute(), Path(config.dataset).expanduser()
        there = {"data_dir": str(home)}
        if own.is_absolute():
            there["dataset"] = str(home / own.name)
        config = config.model_copy(update=there)
    return SavedRun(folder, config, method.heads, method.anchors(params))
