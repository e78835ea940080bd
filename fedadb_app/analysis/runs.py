"""A run's folder, opened for read-outs: kept global models, their anchors, the data."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch

from fedadb_app.anchors import AnchorSettings, ClassAnchors, anchors_of_round
from fedadb_app.config import RunConfig
from fedadb_app.data.clients import dataset_of, image_schema
from fedadb_app.data.preparation import Preparation
from fedadb_app.data.prepared import ImageDataset
from fedadb_app.errors import ConfigError, DataError, FedADBError
from fedadb_app.local_training import choose_device
from fedadb_app.models.classifier import (
    HeadBuilder,
    ImageClassifier,
    ModelSpec,
    StateDict,
    build_classifier,
)
from fedadb_app.runs.checkpoint import Checkpoint
from fedadb_app.runs.model_file import ModelFile, read_model_file
from fedadb_app.runs.reader import read_kept, snapshots
from fedadb_app.runs.summary import read_summary
from fedadb_app.runs.tables import read_table
from fedadb_app.runs.text_files import read

_Kept = tuple[int, Callable[[], StateDict]]
"""A round, and how to read the global model after it."""


@dataclass(frozen=True)
class SavedRun:
    """A run of which a global model is kept.

    Attributes
    ----------
    folder : Path
        Where it lies.
    config : RunConfig
        Its run configuration.
    heads : HeadBuilder
        The heads of its method's model.
    anchor_settings : AnchorSettings or None
        Equation 3-4's constants; None for a method without anchors.
    """

    folder: Path
    config: RunConfig
    heads: HeadBuilder
    anchor_settings: AnchorSettings | None

    @property
    def kept(self) -> Sequence[int]:
        """The rounds whose global model is kept, in order.

        Raises
        ------
        DataError, CheckpointError
            If none is, or none whose round can be told.
        """
        models, problem = self._models
        if not models:
            raise problem or DataError(
                f"{self.folder} keeps no global model yet: a run writes model.safetensors at its "
                f"end, and with snapshot-every one after every so many rounds; drift needs none"
            )
        return list(models)

    def chosen(self, server_round: int | None) -> int:
        """Return a kept round: the one asked for, or the last.

        Raises
        ------
        DataError, CheckpointError
            If that round is not kept, or the file that may be of it does not say its round.
        """
        rounds, problem = self.kept, self._models[1]
        if problem and server_round not in rounds:
            raise problem
        if server_round is None:
            return rounds[-1]
        if server_round not in rounds:
            raise DataError(
                f"{self.folder} keeps no global model of round {server_round}, only of "
                f"{', '.join(map(str, rounds))}; snapshot-every says which are kept"
            )
        return server_round

    @cached_property
    def _models(self) -> tuple[Mapping[int, list[Callable[[], StateDict]]], FedADBError | None]:
        """The ways to read each kept model, and why the last one may be missing among them."""
        found: dict[int, list[Callable[[], StateDict]]] = {}
        problem = None
        for source in (self._snapshots, self._checkpoint, self._final):  # the final one is the last
            try:
                for server_round, load in source():
                    found.setdefault(server_round, []).append(load)
                    problem = None
            except FedADBError as error:
                problem = error
        return dict(sorted(found.items())), problem

    def _snapshots(self) -> Iterator[_Kept]:
        for server_round, kept in snapshots(self.folder).items():
            yield server_round, partial(read_kept, kept / "model.safetensors")

    def _checkpoint(self) -> Iterator[_Kept]:
        if Checkpoint.path(self.folder).exists():
            checkpoint = Checkpoint.read(self.folder)
            yield checkpoint.facts.round, lambda: checkpoint.model

    def _final(self) -> Iterator[_Kept]:
        path = self.folder / "model.safetensors"
        if path.exists():
            table = read(self.folder / "rounds.csv", read_table)
            rounds = 0 if table is None else len(table.rows)
            if table is None or rounds != read_summary(self.folder).get("rounds", rounds):
                raise DataError(
                    f"{path}: of which round it is cannot be told, because rounds.csv is not there "
                    f"or cut off"
                )
            yield rounds, partial(read_kept, path)

    @cached_property
    def dataset(self) -> ImageDataset:
        """What its clients have trained on, and the test part, as it lies on this machine.

        Raises
        ------
        DataError
            If it does not.
        """
        if self.config.own_data:
            raise DataError(f"{self.folder}: the clients' data lie at the nodes, not here")
        return dataset_of(self.config)

    @cached_property
    def device(self) -> torch.device:
        """What the run's configuration names; if that is not here, the best that is."""
        try:
            return choose_device(self.config.device)
        except ConfigError:
            return choose_device("auto")

    @cached_property
    def inputs(self) -> ModelFile:
        """What its model takes in and gives; of a run of an older version by its data set.

        Raises
        ------
        DataError
            If the file is damaged, or not there, and the data set is not on this machine either.
        """
        written = read_model_file(self.folder)
        return written or ModelFile.of(self.config, image_schema(self.config), None)

    @property
    def preparation(self) -> Preparation:
        """How its pixels become model input."""
        return self.inputs.preparation

    def model(self, server_round: int) -> ImageClassifier:
        """Return the global model after a kept round, in evaluation mode, on `device`.

        Raises
        ------
        DataError
            If the file is damaged, or belongs to another model.
        """
        return self._built(self._state(server_round), f"the model of round {server_round}")

    def whole_model(self, file: str) -> ImageClassifier:
        """Return the model in a file of the run's folder, in evaluation mode, on `device`.

        Raises
        ------
        DataError
            If there is no such file, it is damaged, or belongs to another model.
        """
        return self._built(read_kept(self.folder / file), file)

    def _built(self, state: StateDict, what: str) -> ImageClassifier:
        spec = ModelSpec.of(self.config, self.inputs.images)
        model = build_classifier(spec, self.config.seed, self.heads)
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            raise DataError(
                f"{self.folder}: {what} is another one than config.toml describes"
            ) from error
        return model.to(self.device).eval()

    def _state(self, server_round: int) -> StateDict:
        *others, last = self._models[0][server_round]
        for load in others:
            with suppress(DataError):  # the same model may lie in another file
                return load()
        return last()

    def anchors(self, model: ImageClassifier, server_round: int) -> ClassAnchors:
        """Return the anchors that the server makes of the global model after a round.

        They are not kept but made again: those that were sent in the next round, bit for bit where
        machine, device and number of threads are the server's, and but for rounding elsewhere.

        Raises
        ------
        DataError
            If the method makes none.
        """
        if self.anchor_settings is None:
            raise DataError(
                f'{self.folder}: the run made no anchors (strategy="{self.config.strategy}")'
            )
        return anchors_of_round(
            model,
            self.inputs.images,
            self.preparation.valid_range,
            self.anchor_settings,
            self.config.seed,
            server_round + 1,
        )
