"""The typed run configuration: every key, its range, and the sentence a wrong value gets."""

import difflib
import json
import os
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedadb_app.errors import ConfigError

Scalar = bool | int | float | str
ONLY_NODES = "nodes"
"""The value of ``dataset`` with which nobody but the nodes has data."""

PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0)]


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class Settings(BaseModel):
    """Base of all configuration tables: immutable, strict types, kebab-case keys, no extras."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        alias_generator=_kebab,
        populate_by_name=True,
        protected_namespaces=(),
    )

    @classmethod
    def defaults(cls) -> dict[str, Scalar]:
        """Return key -> default value, with the keys as a user types them."""
        return cls().model_dump(by_alias=True)


S = TypeVar("S", bound=Settings)


class RunConfig(Settings):
    """The keys every method shares (docs/run.md explains each)."""

    strategy: str = "fedadb"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    dataset: Annotated[str, Field(min_length=1)] = "digits"
    data_dir: str = ""
    partition: Literal["dirichlet", "iid", "domain"] = "dirichlet"
    alpha: PositiveFloat = 0.1
    classes_per_client: PositiveInt = 2
    classes: str = ""
    image_shape: Annotated[
        str,
        Field(
            pattern=r"^([13]x[1-9]\d*x[1-9]\d*)?$",
            description='channels (1 or 3), height and width, as in "3x28x28"',
        ),
    ] = ""

    num_server_rounds: PositiveInt = 20
    fraction_train: Annotated[float, Field(gt=0, le=1)] = 1.0
    fraction_evaluate: Annotated[float, Field(gt=0, le=1)] = 1.0

    model: Literal["auto", "lenet", "cnn", "resnet18", "googlenet"] = "auto"
    norm: Literal["batch", "batch-local", "group"] = "batch"

    local_epochs: PositiveInt = 5
    batch_size: PositiveInt = 128
    learning_rate: PositiveFloat = 0.01
    learning_rate_decay: Annotated[float, Field(gt=0, le=1)] = 0.99
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 1e-5
    augment: bool = False

    device: Annotated[
        str,
        Field(
            pattern=r"^(auto|cpu|cuda(:\d+)?|mps)$",
            description='one of "auto", "cpu", "cuda", "cuda:N", "mps"',
        ),
    ] = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"

    evaluate: Literal["server", "clients", "both", "none"] = "server"
    evaluate_every: PositiveInt = 1
    output_dir: str = ""
    run_name: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9._-]*$",
            description='a folder name of letters, digits, ".", "_" and "-"',
        ),
    ] = ""
    tensorboard: bool = False
    checkpoint_every: Annotated[int, Field(ge=0)] = 0
    snapshot_every: Annotated[int, Field(ge=0)] = 0
    resume_from: str = ""
    client_state_dir: str = ""

    min_nodes: PositiveInt = 1
    node_timeout: PositiveFloat = 120.0
    round_timeout: PositiveFloat = 3600.0
    min_success_fraction: Annotated[float, Field(ge=0, le=1)] = 0.5
    max_examples: PositiveInt = 1_000_000
    max_relative_update: Annotated[float, Field(ge=0)] = 100.0

    privacy: Literal["none", "central", "local"] = "none"
    clipping_norm: PositiveFloat = 1.0
    noise_multiplier: Annotated[float, Field(ge=1e-3)] = 1.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    @model_validator(mode="after")
    def _absolute_folders(self) -> Self:
        # A managed SuperLink keeps the working directory of the first run it ever served, so a
        # relative path would point into a folder the user does not expect.
        for key in ("data_dir", "output_dir", "resume_from", "client_state_dir"):
            value = getattr(self, key)
            if value and not os.path.isabs(os.path.expanduser(value)):
                raise ValueError(f'{_kebab(key)}="{value}" must be an absolute path')
        if self.run_name in {".", ".."}:
            raise ValueError(f'run-name="{self.run_name}" is not a folder name')
        return self

    @model_validator(mode="after")
    def _federation_of_nodes(self) -> Self:
        names = self.class_names
        if "" in names or len(set(names)) < len(names) or len(names) == 1:
            raise ValueError(
                f'classes="{self.classes}" is not allowed: expected at least two different names '
                f'with commas between, as in "benign,malignant"'
            )
        only_nodes = self.dataset == ONLY_NODES
        if bool(names) != bool(self.image_shape) or (only_nodes and not names):
            raise ValueError(
                'nodes with their own data, as dataset="nodes" expects them, need both '
                'classes="..." and image-shape="...": what all their images have in common'
            )
        if only_nodes and self.server_evaluates:
            raise ValueError(
                f'evaluate="{self.evaluate}" needs a data set on the server, which dataset="nodes" '
                f'says there is not: use evaluate="clients" or "none"'
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

    @property
    def own_data(self) -> bool:
        """Whether each node holds its own images, and no part of ``dataset``."""
        return bool(self.classes)

    @property
    def class_names(self) -> tuple[str, ...]:
        """What ``classes`` lists; empty where it says nothing."""
        return tuple(name.strip() for name in self.classes.split(",")) if self.classes else ()

    @property
    def image_size(self) -> tuple[int, int, int]:
        """Channels, height and width of ``image-shape``."""
        channels, height, width = map(int, self.image_shape.split("x"))
        return channels, height, width

    @property
    def server_evaluates(self) -> bool:
        """Whether the server evaluates on its test set."""
        return self.evaluate in {"server", "both"}

    @property
    def clients_evaluate(self) -> bool:
        """Whether clients hold samples out and evaluate on them."""
        return self.evaluate in {"clients", "both"}

    def learning_rate_at(self, server_round: int) -> float:
        """Return eta_t = eta_0 * decay^(t-1), constant within round t (1-based)."""
        return self.learning_rate * self.learning_rate_decay ** (server_round - 1)


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
            raise ConfigError(f'unknown key "{key}" in the run configuration{_nearest(key, known)}')
        table_name, dot, table_key = key.rpartition(".")
        if dot:
            own[table_name][table_key] = value
        else:
            shared[key] = value
    config = _validate(RunConfig, shared, prefix="")
    if config.strategy not in tables:
        raise ConfigError(
            f'strategy="{config.strategy}" is not a method of this app: '
            f"choose one of {', '.join(sorted(tables))}{_nearest(config.strategy, set(tables))}"
        )
    return config, {
        name: _validate(table, own[name], prefix=f"{name}.") for name, table in tables.items()
    }


def _nearest(word: str, candidates: set[str]) -> str:
    close = difflib.get_close_matches(word, sorted(candidates), n=1, cutoff=0.5)
    return f'; did you mean "{close[0]}"?' if close else ""


def _validate(table: type[S], values: Mapping[str, Scalar], prefix: str) -> S:
    try:
        return table.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:  # raised by a validator of ours, whose text is the sentence
            raise ConfigError(f"{prefix}{first['msg'].removeprefix('Value error, ')}") from error
        key = str(first["loc"][0])
        field = next(f for f in table.model_fields.values() if f.alias == key)
        value = values[key]
        shown = str(value)
        if isinstance(value, bool | str):  # as TOML writes them
            shown = json.dumps(value, ensure_ascii=False)
        raise ConfigError(
            f"{prefix}{key}={shown} is not allowed: "
            f"expected {field.description or _allowed(field.annotation, tuple(field.metadata))}"
        ) from error


def _allowed(annotation: Any, metadata: tuple[Any, ...]) -> str:  # noqa: ANN401
    """Say in words which values a field takes."""
    choices = [a for a in get_args(annotation) if not isinstance(a, type | types.GenericAlias)]
    if choices:
        return "one of " + ", ".join(f'"{c}"' for c in choices)
    bounds = []
    for constraint in metadata:
        for attribute, words in (
            ("gt", "greater than {}"),
            ("ge", "at least {}"),
            ("lt", "less than {}"),
            ("le", "at most {}"),
            ("min_length", "of at least {} characters"),
        ):
            value = getattr(constraint, attribute, None)
            if value is not None:
                bounds.append(words.format(value))
    kind = {
        bool: "true or false",
        int: "a whole number",
        float: "a finite number",
        str: "a text in quotes",
    }.get(annotation, str(annotation))
    return " ".join([kind, " and ".join(bounds)]).strip()
