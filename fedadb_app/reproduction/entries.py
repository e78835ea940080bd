"""What a table or figure is: entries, each the mean of some seeds of one configuration.

A run that two of them share is one run: what a `Setting` is called follows from its values.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedadb_app.errors import ConfigError
from fedadb_app.reproduction.paper import Place, Reported, reported
from fedadb_app.reproduction.settings import Setting


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
    def by_domain(self) -> bool:
        """Whether clients are split by domain, where alpha has no meaning."""
        return self.setting.values.get("partition") == "domain"

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
        What it does otherwise than the paper, but for its rounds and seeds; empty if nothing.
    rounds : str
        A sentence about how long its runs are, if that is not as in the paper.
    """

    item: str
    title: str
    seeds: Sequence[int]
    entries: Sequence[Entry]
    changed: str = ""
    rounds: str = ""

    @property
    def differences(self) -> str:
        """All that it does otherwise than the paper, as sentences."""
        return f"{self.changed} {self.rounds}".strip()

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
            replace(entry, setting=entry.setting.changed("num-server-rounds", rounds))
            for entry in self.entries
        ]
        length = f"All runs have {rounds} round{'s' if rounds > 1 else ''}."
        return replace(self, entries=entries, rounds=length)

    def saying(self, sentence: str) -> "Study":
        """Return it with a sentence more about what it does otherwise than the paper."""
        return replace(self, changed=f"{self.changed} {sentence}".strip())


@dataclass(frozen=True)
class Comparison:
    """Runs that differ in method, alpha and seed alone."""

    setting: Setting
    strategies: Sequence[str]
    alphas: Sequence[float]


_KINDS: Mapping[str, Callable[[Entry], str]] = {
    "data set": lambda entry: entry.setting.dataset,
    "method": lambda entry: entry.strategy,
    "scenario": lambda entry: entry.setting.scenario,
    "alpha": lambda entry: "" if entry.by_domain else f"alpha={entry.alpha:g}",
    "row": lambda entry: entry.row if "=" in entry.row else "",
}
"""What `only` can name; no name is empty."""


def only(studies: Sequence[Study], words: Sequence[str]) -> list[Study]:
    """Return those parts of studies that are about what is named.

    Parameters
    ----------
    studies : Sequence[Study]
        Of which.
    words : Sequence[str]
        Data sets, methods, scenarios, ``alpha=0.05``, or rows such as ``beta=0.3``. An entry stays
        if each kind that is named at all names it; without words all stay.

    Raises
    ------
    ConfigError
        If a word names none of theirs, or nothing is about all that is named.
    """
    if not words:
        return list(studies)
    known = names_by_kind(studies)
    for word in words:
        if not any(word in of_kind for of_kind in known.values()):
            choices = ", ".join(name for of_kind in known.values() for name in of_kind)
            raise ConfigError(
                f"--only {word}: no such {', '.join(_KINDS)} there; choose among {choices}"
            )
    asked = {kind: chosen for kind in _KINDS if (chosen := set(words) & set(known[kind]))}
    parts = (
        replace(
            study,
            entries=[
                entry
                for entry in study.entries
                if all(_KINDS[kind](entry) in chosen for kind, chosen in asked.items())
            ],
        )
        for study in studies
    )
    left = [part.saying(f"Only {', '.join(words)}.") for part in parts if part.entries]
    if not left:
        raise ConfigError(f"--only {','.join(words)}: nothing there is about all of these")
    return left


def names_by_kind(studies: Sequence[Study]) -> Mapping[str, Sequence[str]]:
    """Return what `only` can name in studies, by kind, sorted."""
    entries = [entry for study in studies for entry in study.entries]
    return {kind: sorted({of(entry) for entry in entries} - {""}) for kind, of in _KINDS.items()}
