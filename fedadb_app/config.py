"""The run configuration: every key of a run, and what excludes what."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import model_validator

from fedadb_app.data.intake.intensity import parse_intensity
from fedadb_app.data.intake.names import same_form
from fedadb_app.data.intake.options import IntakeOptions
from fedadb_app.data.registry import DATASETS
from fedadb_app.errors import ConfigError
from fedadb_app.federation_keys import FederationKeys, PrivacyKeys
from fedadb_app.registry import Registry, nearest
from fedadb_app.run_keys import DataKeys, IdentityKeys, OutputKeys, TrainingKeys
from fedadb_app.settings import Scalar, Settings, kebab, validate

__all__ = ["RunConfig", "Scalar", "Settings", "parse_run_config"]


class Keys(
    PrivacyKeys, FederationKeys, OutputKeys, TrainingKeys, DataKeys, IdentityKeys
):  # the last one's keys come first
    """All keys, and what follows from them."""

    @property
    def short_name(self) -> str:
        """Strategy, data set and seed, in letters that a run's folder may be named by."""
        dataset = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(self.dataset).stem)[:40]
        return f"{self.strategy}-{dataset}-seed{self.seed}"

    @property
    def only_nodes(self) -> bool:
        """Whether nobody but the nodes has data."""
        entry = DATASETS.find(self.dataset)
        return entry.locate is None and entry.take_in is None

    @property
    def own_data(self) -> bool:
        """Whether each node holds its own images, and no part of ``dataset``."""
        return bool(self.classes)

    @property
    def class_names(self) -> tuple[str, ...]:
        """What ``classes`` lists; empty where it says nothing."""
        separator = ";" if ";" in self.classes else ","
        names = self.classes.split(separator) if self.classes else []
        return tuple(same_form(name.strip()) for name in names)

    @property
    def image_size(self) -> tuple[int, int, int]:
        """Channels, height and width of ``image-shape``."""
        channels, height, width = map(int, self.image_shape.split("x"))
        return channels, height, width

    @property
    def intake(self) -> IntakeOptions:
        """What is decided about a user's own images; of the nodes' without the class names."""
        return IntakeOptions(
            image_shape=self.image_size if self.image_shape else None,
            resize=self.resize,
            intensity=self.intensity,
            frames=self.frames,
            transparency=self.transparency,
            ignore=self.ignore,
            patient_pattern=self.patient_pattern,
        )

    @property
    def validates(self) -> bool:
        """Whether the server keeps a part of the training images for validation."""
        return self.validation != "merged" and not self.own_data

    @property
    def nodes_validate(self) -> bool:
        """Whether each node keeps a part of its own images for validation."""
        return self.validation != "merged" and self.own_data

    @property
    def rungs(self) -> dict[int, float]:
        """Round -> what ``select-by`` must have reached by then, of ``must-reach``."""
        pairs = (pair.split(":") for pair in self.must_reach.split(",") if pair)
        return {int(number): float(value) for number, value in pairs}

    @property
    def server_evaluates(self) -> bool:
        """Whether the server evaluates on its test set."""
        return self.evaluate in {"server", "both"}

    @property
    def clients_evaluate(self) -> bool:
        """Whether clients hold samples out and evaluate on them."""
        return self.evaluate in {"clients", "both"}

    def learning_rate_at(self, server_round: int) -> float:
        """Return eta_t = eta_0 * decay^(t-1), constant within round t (1-based).

        In the first W rounds, of ``warmup-rounds``, it is t / (W + 1) of that.
        """
        rate = self.learning_rate * self.learning_rate_decay ** (server_round - 1)
        if server_round <= self.warmup_rounds:
            rate *= server_round / (self.warmup_rounds + 1)
        return rate


class RunConfig(Keys):
    """The keys every method shares (docs/run.md lists them), and what excludes what."""

    @model_validator(mode="after")
    def _absolute_folders(self) -> Self:
        # A managed SuperLink keeps the working directory of the first run it ever served, so a
        # relative path would point into a folder the user does not expect.
        for key in ("data_dir", "output_dir", "resume_from", "client_state_dir", "weights"):
            value = getattr(self, key)
            if value and not os.path.isabs(os.path.expanduser(value)):
                raise ValueError(f'{kebab(key)}="{value}" must be an absolute path')
        if self.run_name in {".", ".."}:
            raise ValueError(f'run-name="{self.run_name}" is not a folder name')
        return self

    @model_validator(mode="after")
    def _federation_of_nodes(self) -> Self:
        names = self.class_names
        if "" in names or len(set(names)) < len(names) or len(names) == 1:
            raise ValueError(
                f'classes="{self.classes}" is not allowed: expected at least two different names '
                f'with commas between, as in "benign,malignant" (or semicolons, where a name has '
                f"a comma)"
            )
        entry = DATASETS.find(self.dataset)
        shape_alone = self.image_shape and not names and entry.take_in is None
        if (names and not self.image_shape) or shape_alone or (self.only_nodes and not names):
            raise ValueError(
                'nodes with their own data, as dataset="nodes" expects them, need both '
                'classes="..." and image-shape="...": what all their images have in common'
            )
        if self.only_nodes and self.server_evaluates:
            raise ValueError(
                f'evaluate="{self.evaluate}" needs a data set on the server, which dataset="nodes" '
                f'says there is not: use evaluate="clients" or "none"'
            )
        return self

    @model_validator(mode="after")
    def _window_of_intensity(self) -> Self:
        try:
            parse_intensity(self.intensity)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self

    @model_validator(mode="after")
    def _no_noise_in_own_images(self) -> Self:
        if self.feature_noise and self.own_data:
            raise ValueError(
                f"feature-noise={self.feature_noise:g} is for parts of a public data set: the "
                f"nodes' own images are taken as they are"
            )
        return self

    @model_validator(mode="after")
    def _validation_part(self) -> Self:
        asked = f'validation="{self.validation}"'
        if self.validation not in ("merged", "official") and not (
            0.01 <= float(self.validation) <= 0.5
        ):
            raise ValueError(f"{asked} is not allowed: a fraction is from 0.01 to 0.5")
        if self.nodes_validate:
            self._validation_of_nodes(asked)
        if self.validates and not self.server_evaluates:
            raise ValueError(
                f'{asked} is for the server to evaluate on, which evaluate="{self.evaluate}" '
                f'leaves out: use evaluate="server" or "both"'
            )
        if self.select_by and self.validation == "merged":
            raise ValueError(
                f'select-by="{self.select_by}" needs a validation part: set validation="official" '
                f'or a fraction, as in validation="0.1"'
            )
        if self.patience and not self.select_by:
            raise ValueError(
                f"patience={self.patience} needs to know what better is: set select-by, as in "
                f'select-by="val-accuracy"'
            )
        if self.must_reach and not self.select_by:
            raise ValueError(
                f'must-reach="{self.must_reach}" needs to know what is to be reached: set '
                f'select-by, as in select-by="val-accuracy"'
            )
        return self

    def _validation_of_nodes(self, asked: str) -> None:
        if self.validation == "official":
            raise ValueError(
                f"{asked} is a part of one data set, and here nodes have their own data: use a "
                f'fraction, which each node keeps of its own, as in validation="0.1"'
            )
        if not self.clients_evaluate:
            raise ValueError(
                f'{asked} is for the nodes to evaluate on, which evaluate="{self.evaluate}" leaves '
                f'out: use evaluate="clients" or "both"'
            )
        if self.select_by in ("val-balanced-accuracy", "val-macro-f1"):
            raise ValueError(
                f'select-by="{self.select_by}" is not possible where nodes have their own data: it '
                f"would give away counts of their classes; use val-accuracy, val-ece, val-brier or "
                f"val-auc"
            )

    @model_validator(mode="after")
    def _personalisation(self) -> Self:
        asked = f"personalise-epochs={self.personalise_epochs}"
        if self.personalise_epochs and self.privacy != "none":
            raise ValueError(
                f'{asked} with privacy="{self.privacy}" would release what clients count on their '
                f'own samples, without noise: use personalise-epochs=0 or privacy="none"'
            )
        if self.personalise_epochs and not self.clients_evaluate:
            raise ValueError(
                f'{asked} needs clients that evaluate, but evaluate="{self.evaluate}": use '
                f'"clients" or "both"'
            )
        if self.personalise_epochs and self.patience:
            raise ValueError(
                f"{asked} is for the model of the last round, and with patience={self.patience} "
                f"nobody knows which round that is: use patience=0"
            )
        return self

    @model_validator(mode="after")
    def _nothing_without_noise(self) -> Self:
        if self.privacy != "none" and self.clients_evaluate:
            raise ValueError(
                f'evaluate="{self.evaluate}" with privacy="{self.privacy}" would release what '
                f'clients count on their own samples, without noise: use "server" or "none"'
            )
        return self

    @model_validator(mode="after")
    def _one_mean(self) -> Self:
        if self.privacy == "central" and self.robust != "none":
            raise ValueError(
                f'robust="{self.robust}" is not possible with privacy="central": what its noise '
                f'protects is a mean of clipped updates; use privacy="local" or "none"'
            )
        return self


def parse_run_config(
    values: Mapping[str, Scalar], tables: Mapping[str, type[Settings]]
) -> tuple[RunConfig, dict[str, Settings]]:
    """Check a whole flat run configuration as Flower hands it over.

    Parameters
    ----------
    values : Mapping[str, Scalar]
        Flat keys: ``"learning-rate"``, and ``"fedadb.beta"`` for the table of a method.
    tables : Mapping[str, type[Settings]]
        Method name -> the class of its own values.

    Returns
    -------
    tuple[RunConfig, dict[str, Settings]]
        The shared values, and per method name its own.

    Raises
    ------
    ConfigError
        For the first unknown key, wrong type or value out of range; one sentence.
    """
    shared: dict[str, Scalar] = {}
    own: dict[str, dict[str, Scalar]] = {name: {} for name in tables}
    known = set(RunConfig.defaults())
    for name, table in tables.items():
        known |= {f"{name}.{key}" for key in table.defaults()}
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f'unknown key "{key}" in the run configuration{nearest(key, known)}')
        table_name, dot, table_key = key.rpartition(".")
        if dot:
            own[table_name][table_key] = value
        else:
            shared[key] = value
    config = validate(RunConfig, shared)
    Registry("strategy", tables).check(config.strategy)
    return config, {
        name: validate(table, own[name], prefix=f"{name}.") for name, table in tables.items()
    }
