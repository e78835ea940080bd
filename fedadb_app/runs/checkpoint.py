"""The server's checkpoint: all that a run needs to go on in another folder, another day.

``<run folder>/checkpoint/checkpoint.safetensors`` holds the global model and the method's server
state after a finished round, and, as JSON in its header, what else goes on: the rows of the results
so far, who kept a state, and what must be equal for the run to be the same one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from fedadb_app.client_state import Ancestor
from fedadb_app.config import RunConfig, Scalar, Settings
from fedadb_app.errors import CheckpointError, ConfigError
from fedadb_app.models.classifier import StateDict
from fedadb_app.runs.atomic import read_tensors, write_tensors
from fedadb_app.runs.summary import read_summary

MAY_DIFFER = frozenset(
    {
        "output-dir",
        "run-name",
        "tensorboard",
        "data-dir",
        "device",
        "min-nodes",
        "node-timeout",
        "round-timeout",
        "min-success-fraction",
        "max-reply-bytes",
        "checkpoint-every",
        "snapshot-every",
        "resume-from",
        "client-state-dir",
    }
)
"""Keys that a resumed run may set otherwise: where things lie, and how long a run is patient."""

_MODEL, _STATE, _BEST = "model/", "state/", "best/"


class Facts(BaseModel):
    """What a checkpoint says beside its tensors.

    Attributes
    ----------
    round : int
        The last finished round.
    run_id : int
        Flower's id of the run that wrote it.
    ancestors : tuple[Ancestor, ...]
        The runs that this one continued.
    config : dict[str, Scalar]
        Every effective value of the run configuration, the method's own included.
    partition : str
        The hash of who holds what; empty where nodes have their own data.
    data : str
        The digest of the server's images; empty where it has none.
    state_rounds : dict[int, int]
        Client -> the last round in which it took part, for clients that keep a state.
    rounds_drawn : dict[int, int]
        Client -> in how many rounds it was drawn: what its privacy loss follows from.
    nodes : dict[int, tuple[int, ...]]
        Of nodes with their own data: how many samples each trained on and held out, and (not in
        checkpoints of older versions) kept for validation.
    tables : dict[str, str]
        The text of each table of the run's folder.
    seconds : float
        How long the rounds so far took.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    round: int
    run_id: int
    ancestors: tuple[Ancestor, ...]
    config: dict[str, Scalar]
    partition: str
    state_rounds: dict[int, int]
    rounds_drawn: dict[int, int]
    nodes: dict[int, tuple[int, ...]]
    tables: dict[str, str]
    seconds: float
    data: str = ""  # not in checkpoints of older versions


@dataclass(frozen=True)
class Checkpoint:
    """A run after a finished round: `facts`, the global `model`, the method's server `state`.

    `best` is the model of the round that ``select-by`` has chosen so far; empty without one.
    """

    facts: Facts
    model: StateDict
    state: StateDict
    best: StateDict = field(default_factory=dict)

    @staticmethod
    def path(run_folder: Path) -> Path:
        """Return where a run's checkpoint lies."""
        return run_folder / "checkpoint" / "checkpoint.safetensors"

    def write(self, run_folder: Path) -> None:
        """Replace the checkpoint of a run.

        Raises
        ------
        StorageError
            If the disk does not take it; the checkpoint before it then stays.
        """
        tensors = {_MODEL + name: tensor for name, tensor in self.model.items()}
        tensors |= {_STATE + name: tensor for name, tensor in self.state.items()}
        tensors |= {_BEST + name: tensor for name, tensor in self.best.items()}
        write_tensors(self.path(run_folder), tensors, self.facts.model_dump_json())

    @classmethod
    def read(cls, run_folder: Path) -> Self:
        """Read the checkpoint of a run.

        Raises
        ------
        CheckpointError
            If it is damaged, of another version of this app, or no checkpoint.
        """
        path = cls.path(run_folder)
        tensors, text = read_tensors(path)
        try:
            facts = Facts.model_validate_json(text)
        except ValidationError as error:
            raise CheckpointError(f"{path} is no checkpoint of this version of the app") from error
        model, state, best = (
            {n.removeprefix(part): t for n, t in tensors.items() if n.startswith(part)}
            for part in (_MODEL, _STATE, _BEST)
        )
        return cls(facts, model, state, best)

    @property
    def lineage(self) -> tuple[Ancestor, ...]:
        """The ancestors of a run that goes on from here."""
        return (*self.facts.ancestors, Ancestor(self.facts.run_id, self.facts.round))


def effective_values(config: RunConfig, own: Settings) -> dict[str, Scalar]:
    """Return a run's whole configuration as flat keys."""
    table = own.model_dump(by_alias=True)
    values: dict[str, Scalar] = config.model_dump(by_alias=True)
    return values | {f"{config.strategy}.{key}": value for key, value in table.items()}


def checkpoint_to_resume(config: RunConfig, own: Settings) -> Checkpoint | None:
    """Return the checkpoint that ``resume-from`` names; None where it is empty.

    Raises
    ------
    ConfigError
        If the folder holds no checkpoint, its run is complete, or was another run than this one.
    CheckpointError
        If the checkpoint is damaged.
    """
    if not config.resume_from:
        return None
    folder, named = Path(config.resume_from).expanduser(), f'resume-from="{config.resume_from}"'
    if not Checkpoint.path(folder).is_file():
        raise ConfigError(
            f"{named}: no checkpoint lies there; name the folder of a run that had "
            f"checkpoint-every set and finished that many rounds"
        )
    checkpoint = Checkpoint.read(folder)
    # What an older version of this app did not know was as it is by default.
    defaults = RunConfig.model_validate({"strategy": config.strategy}), type(own)()
    before = effective_values(*defaults) | checkpoint.facts.config
    _refuse_differences(named, before, effective_values(config, own))
    if read_summary(folder).get("status") == "completed":
        raise ConfigError(f"{named}: that run is complete; there is nothing to resume")
    return checkpoint


def _refuse_differences(
    named: str, before: Mapping[str, Scalar], now: Mapping[str, Scalar]
) -> None:
    for key in {**now, **before}:
        if key not in MAY_DIFFER and before.get(key) != now.get(key):
            old, new = (json.dumps(v.get(key), ensure_ascii=False) for v in (before, now))
            raise ConfigError(
                f"{named}: {key} was {old} in that run and is {new} in this one; a resumed run "
                f"must repeat it"
            )
