"""What a hospital allows a run to ask of its node: the study file, which a node's config names.

Checked on every message, before anything of the data is opened. The app checks itself here: a file
like this limits what approved code is asked to do, and catches another version of it; against
hostile code, which would leave the check out, only who may start runs protects (docs/deploy.md).
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from fedadb_app.app_hash import running_app_hash
from fedadb_app.config import RunConfig
from fedadb_app.errors import ConfigError
from fedadb_app.own_code import is_own
from fedadb_app.privacy import epsilon_spent
from fedadb_app.settings import Scalar, Settings, kebab

STUDY = "study"
"""The key of ``--node-config``."""


class Study(Settings):
    """The keys of a study file; what is left out allows everything."""

    trusted_apps: list[str] = Field(
        [], description="hashes of approved code, as `fedadb app-hash` prints them"
    )
    own_code: list[str] | None = Field(
        None,
        description="own nets and data sets, as package.module:function, that a run may name; an "
        "empty list allows none, and so does leaving it out where there are `trusted-apps`, whose "
        "hash does not cover such code",
    )
    strategies: list[str] = Field([], description="methods that a run may use")
    classes: list[str] = Field(
        [], description="class names that a run with the nodes' own data may list in `classes`"
    )
    data_paths: list[str] = Field(
        [],
        description="absolute files or folders; the node's `data-path` and a run's `dataset`, "
        "`data-dir` and `client-state-dir` must be one of them or lie in one",
    )
    max_rounds: int | None = Field(None, ge=1, description="largest `num-server-rounds`")
    max_local_epochs: int | None = Field(
        None, ge=1, description="largest `local-epochs` and `personalise-epochs`"
    )
    privacy: list[Literal["none", "central", "local"]] = Field(
        [], description="values of `privacy` that a run may have"
    )
    min_noise_multiplier: float | None = Field(
        None, gt=0, description="least `noise-multiplier`; a run without `privacy` is refused"
    )
    max_epsilon: float | None = Field(
        None,
        gt=0,
        description="largest epsilon of a client that is drawn in all rounds; a run without "
        "`privacy` is refused",
    )
    max_delta: float | None = Field(None, gt=0, lt=1, description="largest `delta`")
    share_evaluation: bool = Field(
        True,
        description="whether the node may tell how many held-out images the model got right, "
        'which `evaluate="clients"` and `"both"` ask for',
    )


def read_study(path: Path) -> Study:
    """Read a study file.

    Raises
    ------
    ConfigError
        If it cannot be read, or has an unknown key or a value that is not allowed: then nothing is
        allowed.
    """
    try:
        return Study.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"this node's study file: {place}: {first['msg']}") from error
    except OSError as error:
        raise ConfigError(
            f"this node's study file cannot be read ({error.strerror or error})"
        ) from error
    except ValueError as error:
        raise ConfigError(f"this node's study file is no TOML: {error}") from error


def refuse_beyond(study: Study, config: RunConfig, node_config: Mapping[str, Scalar]) -> None:
    """Refuse a run that asks for more than the study file allows.

    Parameters
    ----------
    study : Study
        The limits.
    config : RunConfig
        What the run asks for.
    node_config : Mapping[str, Scalar]
        For the path of the node's own data.

    Raises
    ------
    ConfigError
        For the first limit that is passed; it names the limit, and no path of the node.
    """
    if study.trusted_apps and running_app_hash() not in study.trusted_apps:
        raise _StudyError("trusted-apps", f"the app's code has the hash {running_app_hash()}")
    _refuse_own_code(study, config)
    choices: list[tuple[str, str, Sequence[str]]] = [
        ("strategies", config.strategy, study.strategies),
        ("privacy", config.privacy, study.privacy),
        *(("classes", name, study.classes) for name in config.class_names),
    ]
    for key, value, allowed in choices:
        if allowed and value not in allowed:
            raise _StudyError(key, f'it lists {", ".join(allowed)}, and the run has "{value}"')
    _refuse_paths(study, config, node_config)
    for limit, key in (
        ("max_rounds", "num_server_rounds"),
        ("max_local_epochs", "local_epochs"),
        ("max_local_epochs", "personalise_epochs"),
    ):
        most, asked = getattr(study, limit), getattr(config, key)
        if most is not None and asked > most:
            raise _StudyError(kebab(limit), f"it is {most}, and the run has {kebab(key)}={asked}")
    _refuse_privacy(study, config)
    if not study.share_evaluation and config.clients_evaluate:
        raise _StudyError(
            "share-evaluation", f'it is false, and the run has evaluate="{config.evaluate}"'
        )


def _refuse_own_code(study: Study, config: RunConfig) -> None:
    allowed = study.own_code
    if allowed is None:
        if not study.trusted_apps:
            return
        allowed = []
    for key, name in (("model", config.model), ("dataset", config.dataset)):
        if is_own(name) and name not in allowed:
            listed = ", ".join(allowed) or "nothing"
            raise _StudyError("own-code", f'{listed} is allowed, and the run has {key}="{name}"')


class _StudyError(ConfigError):
    def __init__(self, limit: str, why: str) -> None:
        super().__init__(f"this node's study file does not allow the run: {limit}: {why}")


def _refuse_paths(study: Study, config: RunConfig, node_config: Mapping[str, Scalar]) -> None:
    if not study.data_paths:
        return
    allowed = [Path(path).expanduser().resolve() for path in study.data_paths]
    for key, value in (
        ("data-path", node_config.get("data-path", "") if config.own_data else ""),
        ("dataset", config.dataset if Path(config.dataset).is_absolute() else ""),
        ("data-dir", config.data_dir),
        ("client-state-dir", config.client_state_dir),
    ):
        place = Path(str(value)).expanduser().resolve()  # no link leads out of what is allowed
        if value and not any(place.is_relative_to(one) for one in allowed):
            raise _StudyError("data-paths", f"{key} is, or lies in, none of them")


def _refuse_privacy(study: Study, config: RunConfig) -> None:
    limits = {
        "min-noise-multiplier": study.min_noise_multiplier,
        "max-epsilon": study.max_epsilon,
        "max-delta": study.max_delta,
    }
    for limit, value in limits.items():
        if value is not None and config.privacy == "none":
            raise _StudyError(limit, f'it is {value:g}, and the run has privacy="none"')
    least, most = study.min_noise_multiplier, study.max_epsilon
    if least is not None and config.noise_multiplier < least:
        said = f"it is {least:g}, and the run has noise-multiplier={config.noise_multiplier:g}"
        raise _StudyError("min-noise-multiplier", said)
    if study.max_delta is not None and config.delta > study.max_delta:
        said = f"it is {study.max_delta:g}, and the run has delta={config.delta:g}"
        raise _StudyError("max-delta", said)
    if most is not None and (spent := epsilon_spent(config, config.num_server_rounds)) > most:
        raise _StudyError("max-epsilon", f"it is {most:g}, and the run would spend {spent:.4g}")
