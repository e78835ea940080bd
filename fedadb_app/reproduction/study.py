"""What a table or figure is: entries, each the mean of some seeds of one configuration.

A run that two of them share is one run: what a `Setting` is called follows from its values.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedadb_app.config import Scalar
from fedadb_app.errors import ConfigError
from fedadb_app.reproduction.paper import Place, Reported, reported

DEVICE, SILO = "cross-device", "cross-silo"
SCENARIOS = {DEVICE: (100, 0.05), SILO: (20, 0.2)}
"""K and rho (section 5.1)."""


@dataclass(frozen=True)
class Setting:
    """What the runs of one comparison share: all but method, alpha and seed.

    Attributes
    ----------
    scenario : str
        Cross-device or cross-silo.
    base : Mapping[str, Scalar]
        The data set's overrides of the run configuration.
    changes : Mapping[str, Scalar]
        Those of this setting, which go before.
    """

    scenario: str
    base: Mapping[str, Scalar]
    changes: Mapping[str, Scalar]

    @property
    def name(self) -> str:
        """The comparison's folder."""
        changed = [
            f"-{key.rpartition('.')[2]}-{str(value).lower()}" for key, value in self.changes.items()
        ]
        return f"{self.scenario}-{self.dataset}{''.join(changed)}"

    @property
    def values(self) -> Mapping[str, Scalar]:
        """Overrides of the run configuration."""
        return {**self.base, **self.changes}

    @property
    def clients(self) -> int:
        """K."""
        return SCENARIOS[self.scenario][0]

    @property
    def dataset(self) -> str:
        """The data set's name in the run configuration."""
        return str(self.base["dataset"])

    def but(self, key: str, value: Scalar) -> "Setting":
        """Return the same with one other value."""
        return replace(self, changes={**self.changes, key: value})


@dataclass(frozen=True)
class Entry:
    """One number of a table, or one point or picture of a figure: a configuration, some seeds.

    Attributes
    ----------
    row, column : str
        Where it stands.
    setting, strategy, alpha
        Which runs it is the mean of.
    paper : Place
        Where the paper's own number stands, if it reports one.
    """

    row: str
    column: str
    setting: Setting
    strategy: str
    alpha: float
    paper: Place

    @property
    def reported(self) -> Reported | None:
        """What the paper reports in this place."""
        return reported().get(self.paper)


@dataclass(frozen=True)
class Study:
    """One table or figure.

    Attributes
    ----------
    item : str
        ``table1`` and so on.
    title : str
        What it shows.
    seeds : Sequence[int]
        Of every configuration.
    entries : Sequence[Entry]
        What it consists of.
    changed : str
        What it does otherwise than the paper, but for its number of seeds; empty if nothing.
    """

    item: str
    title: str
    seeds: Sequence[int]
    entries: Sequence[Entry]
    changed: str

    @property
    def heading(self) -> str:
        """How the paper calls it, as in "Table 1"."""
        return re.sub(r"([a-z]+)(\d+)", r"\1 \2", self.item).capitalize()

    @property
    def comparisons(self) -> Sequence["Comparison"]:
        """The runs that it needs, those of one setting together."""
        by_name: dict[str, list[Entry]] = {}
        for entry in self.entries:
            by_name.setdefault(entry.setting.name, []).append(entry)
        return [
            Comparison(
                entries[0].setting,
                tuple(dict.fromkeys(entry.strategy for entry in entries)),
                tuple(dict.fromkeys(entry.alpha for entry in entries)),
            )
            for entries in by_name.values()
        ]

    def in_rounds(self, rounds: int) -> "Study":
        """Return it with other runs: all of this length, kept apart from the others."""
        entries = [
            replace(entry, setting=entry.setting.but("num-server-rounds", rounds))
            for entry in self.entries
        ]
        return replace(self, entries=entries).otherwise(f"All in {rounds} rounds.")

    def otherwise(self, sentence: str) -> "Study":
        """Return it with a sentence more about what it does otherwise than the paper."""
        return replace(self, changed=f"{self.changed} {sentence}".strip())


@dataclass(frozen=True)
class Comparison:
    """Runs that differ in method, alpha and seed alone."""

    setting: Setting
    strategies: Sequence[str]
    alphas: Sequence[float]


_KINDS: Sequence[Callable[[Entry], str]] = (
    lambda entry: entry.setting.dataset,
    lambda entry: entry.strategy,
    lambda entry: entry.setting.scenario,
)
"""What `only` can name."""


def only(studies: Sequence[Study], words: Sequence[str]) -> list[Study]:
    """Return those parts of studies that are about the data sets, methods and scenarios named.

    Raises
    ------
    ConfigError
        If a word names none of theirs.
    """
    if not words:
        return list(studies)
    known = [{kind(entry) for study in studies for entry in study.entries} for kind in _KINDS]
    for word in words:
        if not any(word in names for names in known):
            choices = ", ".join(name for names in known for name in sorted(names))
            raise ConfigError(
                f"--only {word}: no such data set, method or scenario there; choose among {choices}"
            )
    asked = [(kind, names & set(words)) for kind, names in zip(_KINDS, known, strict=True)]
    parts = (
        replace(
            study,
            entries=[e for e in study.entries if all(not n or kind(e) in n for kind, n in asked)],
        )
        for study in studies
    )
    return [part.otherwise(f"Only {', '.join(words)}.") for part in parts if part.entries]
