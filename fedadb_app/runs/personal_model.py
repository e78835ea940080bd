"""A client's personalised model, on its own disk: a folder that `fedadb predict` opens."""

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save

from fedadb_app.config import RunConfig, Scalar
from fedadb_app.models.classifier import StateDict
from fedadb_app.runs.atomic import replace
from fedadb_app.runs.model_file import ModelFile, write_model_file
from fedadb_app.runs.origin import effective_values
from fedadb_app.runs.reader import CONFIG


def personal_folder(config: RunConfig, run_id: int, client: int) -> Path | None:
    """Return where a client keeps its model; None: of a part of a public data set nobody needs it.

    Below ``client-state-dir`` or, of a node with its own images, in its user's ``~/fedadb-runs``.
    """
    if config.client_state_dir:
        base = Path(config.client_state_dir).expanduser()
        return base / str(run_id) / f"client-{client}" / "personalised"
    if config.own_data:
        return Path("~/fedadb-runs").expanduser() / f"personalised-{run_id}-client-{client}"
    return None


def write_personal_model(
    folder: Path,
    config: RunConfig,
    own: Mapping[str, Scalar],
    inputs: ModelFile,
    state: StateDict,
) -> None:
    """Write the model, what it takes in and gives, and the configuration that says which net it is.

    Raises
    ------
    StorageError
        If the disk does not take it.
    """
    replace(folder / CONFIG, effective_values(config, own).encode())
    write_model_file(folder, inputs)
    replace(folder / "model.safetensors", save({n: t.contiguous() for n, t in state.items()}))
