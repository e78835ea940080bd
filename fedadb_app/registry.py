"""A registry: what a name in the run configuration stands for, and the sentence for a wrong one."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fedadb_app.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Family(Generic[T]):
    """Names that nobody lists one by one: a path, a flag of MedMNIST.

    Attributes
    ----------
    form : str
        What such a name looks like, for a sentence: ``the absolute path of a folder``.
    find : Callable[[str], T | None]
        The entry of a name; None where the name has not this form. Raises `ConfigError` where it
        has, and still cannot be used.
    examples : Callable[[], Iterable[str]]
        Names to compare a wrong one with.
    """

    form: str
    find: Callable[[str], T | None]
    examples: Callable[[], Iterable[str]] = tuple


class Registry(Mapping[str, T]):
    """Name -> entry, for one key of the run configuration.

    Iteration and length are those of the listed names; ``registry[name]`` knows families too.

    Parameters
    ----------
    key : str
        As a user types it.
    entries : Mapping[str, T]
        The listed names.
    families : Sequence[Family[T]]
        Asked in turn for every other name.
    """

    def __init__(
        self, key: str, entries: Mapping[str, T], families: Sequence[Family[T]] = ()
    ) -> None:
        self.key = key
        self.entries = dict(entries)
        self.families = tuple(families)

    def __getitem__(self, name: str) -> T:
        if name in self.entries:
            return self.entries[name]
        for family in self.families:
            if (entry := family.find(name)) is not None:
                return entry
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def allowed(self) -> str:
        """Which names there are, in words."""
        listed = ", ".join(f'"{name}"' for name in self)
        return f"one of {listed}{''.join(f', or {family.form}' for family in self.families)}"

    @property
    def json_schema(self) -> dict[str, Any]:
        """The names, for the JSON schema of a key: all there are, or examples and words."""
        if not self.families:
            return {"enum": list(self)}
        return {"examples": list(self), "allowed": self.allowed}

    def find(self, name: str) -> T:
        """Return a name's entry.

        Raises
        ------
        ConfigError
            For an unknown name: which there are, and which of them comes nearest.
        """
        try:
            return self[name]
        except KeyError:
            known = [*self, *(n for family in self.families for n in family.examples())]
            raise ConfigError(
                f'{self.key}="{name}" is unknown: expected {self.allowed}{nearest(name, known)}'
            ) from None

    def check(self, name: str) -> str:
        """Return a name as it is, if it is known; for pydantic's `AfterValidator`."""
        self.find(name)
        return name


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown word: what may have been meant."""
    close = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.5)
    return f'; did you mean "{close[0]}"?' if close else ""
