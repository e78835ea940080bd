"""What a page is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup

from fedadb_app.report.svg import Picture
from fedadb_app.runs.tables import Table
from fedadb_app.runs.text_files import read_or_note


@dataclass(frozen=True)
class ShownImage:
    """An image of a class: its PNG as a data URL, what it is, its class, its confidence."""

    source: str
    kind: str
    name: str
    confidence: str


@dataclass(frozen=True)
class Section:
    """A part of the page, in the order in which it is shown."""

    title: str
    lead: str = ""
    prose: Markup = field(default_factory=Markup)
    images: Mapping[str, Sequence[ShownImage]] = field(default_factory=dict)
    pictures: Sequence[Picture] = ()
    notes: Sequence[str] = ()
    tables: Mapping[str, Table] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """What the template shows."""

    folder: Path
    title: str
    status: str
    subtitle: Sequence[str]
    tiles: Sequence[tuple[str, str]]
    sections: Sequence[Section]


def shown(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as TOML and JSON write them, texts without quotes."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value) or "–"
        for key, value in values.items()
    }


def rendered(text: str) -> Markup:
    """Return a Markdown file as HTML without its first line: the page has its own title."""
    body = text.partition("\n")[2]
    return Markup(MarkdownIt("commonmark", {"html": False}).enable("table").render(body))


def sources(folder: Path, name: str, faults: dict[str, str]) -> dict[str, str]:
    """Return what a section shows of a LaTeX file; nothing where it is not there."""
    text = read_or_note(folder / name, str, faults)
    return {f"As LaTeX ({name})": text} if text else {}
