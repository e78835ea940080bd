"""Run configurations as text: what `flwr run --run-config` takes, and an app's defaults."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedadb_app.config import Scalar
from fedadb_app.errors import ConfigError

_ASSIGNMENT = re.compile(r"""([^\s=]+)\s*=\s*("(?:[^"\\]|\\.)*"|'[^']*'|[^\s"']+)""")


def parse_assignments(text: str) -> dict[str, Scalar]:
    """Parse ``key=value key="text"``, as `flwr run --run-config` takes it, or a TOML file's path.

    `flwr` drops what it does not understand without a word; here it is an error.

    Raises
    ------
    ConfigError
        If any part of the text is no assignment of a TOML value.
    """
    if text.endswith(".toml"):
        try:
            return flatten(tomllib.loads(Path(text).expanduser().read_text()))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"run configuration file {text} cannot be read: {error}") from error
    rest = _ASSIGNMENT.sub("", text).strip()
    if rest:
        raise ConfigError(
            f'"{rest}" in the run configuration is no key=value pair; write texts in double '
            f"quotes, as in 'strategy=\"fedavg\" alpha=0.1'"
        )
    values: dict[str, Scalar] = {}
    for key, value in _ASSIGNMENT.findall(text):
        try:
            values[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError as error:
            inner = value.strip("\"',")
            advice = f'write texts in double quotes: {key}="{inner}"'
            if "\\" in value:
                advice = f"a backslash needs single quotes, {key}='{inner}', or write / for it"
            elif value.endswith(","):
                advice = f"assignments have blanks between them, no commas: {key}={inner}"
            raise ConfigError(f"{key}={value} is no TOML value; {advice}") from error
    return values


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """Turn nested tables into dotted keys, as Flower does."""
    flat: dict[str, Scalar] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def as_assignments(values: Mapping[str, Scalar]) -> str:
    """Write values as `flwr run --run-config` reads them (it knows no escapes inside a text)."""
    words = []
    for key, value in values.items():
        if isinstance(value, str):
            quote = '"' if '"' not in value and "\\" not in value else "'"
            words.append(f"{key}={quote}{value}{quote}")
        else:
            words.append(f"{key}={str(value).lower()}")
    return " ".join(words)


def app_defaults(app: Path) -> dict[str, Scalar]:
    """Read an app's default run configuration.

    Raises
    ------
    ConfigError
        If the folder holds no Flower app.
    """
    try:
        project = tomllib.loads((app / "pyproject.toml").read_text())
        return flatten(project["tool"]["flwr"]["app"]["config"])
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"{app} is not a checkout of this app (no [tool.flwr.app.config] in a pyproject.toml); "
            f"name it with --app"
        ) from error
