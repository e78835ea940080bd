"""A run's folder, opened for read-outs: kept global models, their anchors, the data."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from fedadb_app.anchors import AnchorSettings, ClassAnchors, generate_anchors
from fedadb_app.checkpoint import Checkpoint
from fedadb_app.config import RunConfig
from fedadb_app.data import image_schema
from fedadb_app.data.preparation import Preparation, preparation_of
from fedadb_app.data.sources import ImageDataset, open_dataset
from fedadb_app.errors import DataError
from fedadb_app.local_training import choose_device
from fedadb_app.models import HeadBuilder, ImageClassifier, ModelSpec, StateDict, build_classifier
from fedadb_app.randomness import torch_generator
from fedadb_app.run_files import read_accuracies, snapshots


def read_configuration(folder: Path) -> dict[str, Any]:
    """Return a run's effective values as its ``config.toml`` has them, without the versions.

    Raises
    ------
    DataError
        If the folder holds no run.
    """
    path = folder / "config.toml"
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise DataError(f"{folder} holds no run: {path} cannot be read") from error
    except ValueError as error:  # no TOML, or not even UTF-8
        raise DataError(f"{path} is damaged: {error}") from error
    values.pop("packages", None)
    return values


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

    @cached_property
    def kept(self) -> Mapping[int, Callable[[], StateDict]]:
        """The rounds whose global model is kept, in order, and how to read each.

        Raises
        ------
        DataError
            If none is.
        CheckpointError
            If the checkpoint is damaged.
        """
        readers: dict[int, Callable[[], StateDict]] = {}
        final = self.folder / "model.safetensors"
        if final.exists():
            readers[read_accuracies(self.folder)[1]] = partial(_load, final)
        if Checkpoint.path(self.folder).exists():
            checkpoint = Checkpoint.read(self.folder)
            readers[checkpoint.facts.round] = lambda: checkpoint.model
        for server_round, kept in snapshots(self.folder).items():
            readers[server_round] = partial(_load, kept / "model.safetensors")
        if not readers:
            raise DataError(
                f"{self.folder} keeps no global model yet: a run writes model.safetensors at its "
                f"end, and with snapshot-every one after every so many rounds"
            )
        return dict(sorted(readers.items()))

    def chosen(self, server_round: int | None) -> int:
        """Return a kept round: the one asked for, or the last.

        Raises
        ------
        DataError
            If that round is not kept.
        """
        rounds = list(self.kept)
        if server_round is None:
            return rounds[-1]
        if server_round not in rounds:
            raise DataError(
                f"{self.folder} keeps no global model of round {server_round}, only of "
                f"{', '.join(map(str, rounds))}; snapshot-every says which are kept"
            )
        return server_round

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
        return open_dataset(self.config.dataset, self.config.data_dir)

    @property
    def preparation(self) -> Preparation:
        """How its pixels become model input."""
        return preparation_of(self.config.dataset)

    def model(self, server_round: int) -> ImageClassifier:
        """Return the global model after a kept round, in evaluation mode, on the best device here.

        Raises
        ------
        DataError
            If the file is damaged, or belongs to another model.
        """
        spec = ModelSpec.of(self.config, image_schema(self.config))
        model = build_classifier(spec, self.config.seed, self.heads)
        try:
            model.load_state_dict(self.kept[server_round]())
        except RuntimeError as error:
            raise DataError(
                f"{self.folder}: the model of round {server_round} is another one than config.toml "
                f"describes"
            ) from error
        return model.to(choose_device("auto")).eval()

    def anchors(self, model: ImageClassifier, server_round: int) -> ClassAnchors:
        """Return the anchors that the server makes of the global model after a round.

        They are not kept but made again, bit for bit those that were sent in the next round.

        Raises
        ------
        DataError
            If the method makes none.
        """
        if self.anchor_settings is None:
            raise DataError(
                f'{self.folder}: the run made no anchors (strategy="{self.config.strategy}")'
            )
        schema = image_schema(self.config)
        return generate_anchors(
            model,
            schema.num_classes,
            schema.image_shape,
            self.preparation.valid_range,
            self.anchor_settings,
            torch_generator(self.config.seed, "anchors", server_round + 1),
        )


def _load(path: Path) -> StateDict:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} is damaged or cannot be read: {error}") from error
