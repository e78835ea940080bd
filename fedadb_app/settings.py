"""Tables of a run configuration: strict, typed, and refused in one sentence."""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fedadb_app.errors import ConfigError

Scalar = bool | int | float | str


def kebab(name: str) -> str:
    """Return a key as a user types it."""
    return name.replace("_", "-")


class Settings(BaseModel):
    """Base of all configuration tables: immutable, strict types, kebab-case keys, no extras."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        alias_generator=kebab,
        populate_by_name=True,
        protected_namespaces=(),
    )

    @classmethod
    def defaults(cls) -> dict[str, Scalar]:
        """Return key -> default value, with the keys as a user types them."""
        return cls().model_dump(by_alias=True)

    @classmethod
    def described(cls) -> dict[str, dict[str, Any]]:
        """Return key -> pydantic's JSON schema of its values, with what the key means."""
        properties: dict[str, dict[str, Any]] = cls.model_json_schema().get("properties", {})
        return properties


S = TypeVar("S", bound=Settings)


def validate(table: type[S], values: Mapping[str, Scalar], prefix: str = "") -> S:
    """Check one table.

    Parameters
    ----------
    table : type[Settings]
        What the keys are.
    values : Mapping[str, Scalar]
        Keys of the table, as a user types them.
    prefix : str
        What stands before a key in a sentence: ``"fedadb."``.

    Raises
    ------
    ConfigError
        For the first wrong value; one sentence.
    """
    try:
        return table.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "value_error":  # of a validator of ours, whose text is the sentence
            raise ConfigError(f"{prefix}{first['ctx']['error']}") from error
        key = str(first["loc"][0])
        shown = str(values[key])
        if isinstance(values[key], bool | str):  # as TOML writes them
            shown = json.dumps(values[key], ensure_ascii=False)
        raise ConfigError(
            f"{prefix}{key}={shown} is not allowed: expected {allowed(table.described()[key])}"
        ) from error


_BOUNDS = {
    "exclusiveMinimum": "greater than {}",
    "minimum": "at least {}",
    "exclusiveMaximum": "less than {}",
    "maximum": "at most {}",
}
_TYPES = {"boolean": "true or false", "integer": "a whole number", "number": "a finite number"}


def allowed(schema: Mapping[str, Any]) -> str:
    """Say in words which values a key takes, from its part of `Settings.described`."""
    if "allowed" in schema:  # our words, where the schema has a pattern or the names of a registry
        return str(schema["allowed"])
    if "enum" in schema:
        return "one of " + ", ".join(f'"{choice}"' for choice in schema["enum"])
    bounds = [words.format(schema[k]) for k, words in _BOUNDS.items() if k in schema]
    kind = _TYPES.get(schema["type"], "a text in quotes")
    return f"{kind} {' and '.join(bounds)}".strip()
