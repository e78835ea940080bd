"""The intake report: what was found, read, left out and done, to the last file."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from fedadb_app.data.arrays import Shape
from fedadb_app.data.intake.find import LeftOut
from fedadb_app.data.intake.intensity import Window
from fedadb_app.data.intake.names import HARMLESS, shown
from fedadb_app.errors import DataError

REPORT = "report.json"
"""The file that keeps a report beside the arrays it is about."""

_MOST_LISTED = 12


@dataclass
class PartReport:
    """One part, training or test.

    Attributes
    ----------
    images : int
        How many.
    per_class : dict[str, int]
        Class name -> images.
    patients : int or None
        How many different ones, None where they are not known.
    """

    images: int = 0
    per_class: dict[str, int] = field(default_factory=dict)
    patients: int | None = None


@dataclass
class IntakeReport:
    """What an intake did; names of files may name patients, so it stays on its machine.

    Attributes
    ----------
    source : str
        The folder or file.
    class_names : list[str]
        Index = label.
    found, read, images : int
        Files that are no harmless ones, files that were decoded, images that they gave.
    left_out : dict[str, dict[str, int]]
        Kind -> class folder (``""``: beside them) -> files.
    examples : dict[str, str]
        Kind of what is left out or unusable -> one file.
    unusable : dict[str, int]
        Kind -> files that could not be read or may not be.
    kinds, modes, sizes, notes : dict[str, int]
        Formats, modes with depths, sizes as height x width: images. What was done: files.
    made : str
        Shape and type of what was made, and how.
    window : str
        Which values of more than 8 bits became black and white, exactly; ``""``: no stated ones.
    patients : str
        Where they are known from, or that they are not.
    parts : dict[str, PartReport]
        ``train`` and ``test``.
    bytes : int
        Of the prepared images, on disk, mapped into memory as they are used.
    layout : list[str]
        How the folder was understood.
    errors, warnings : list[str]
        A run refuses data with errors.
    """

    source: str
    class_names: list[str] = field(default_factory=list)
    found: int = 0
    read: int = 0
    images: int = 0
    left_out: dict[str, dict[str, int]] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    unusable: dict[str, int] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    sizes: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    made: str = ""
    window: str = ""
    patients: str = ""
    parts: dict[str, PartReport] = field(default_factory=dict)
    bytes: int = 0
    layout: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def leave_out(self, files: tuple[LeftOut, ...], depth: int) -> None:
        """Count what is left out, by kind and class folder, which lies at this depth."""
        for file in files:
            of_class = shown(file.relative[depth - 1]) if len(file.relative) > depth else ""
            counts = self.left_out.setdefault(file.kind, {})
            counts[of_class] = counts.get(of_class, 0) + 1
            self.examples.setdefault(file.kind, shown("/".join(file.relative)))

    def cannot_use(self, kind: str, example: str) -> None:
        """Count a file that cannot become an image."""
        self.unusable[kind] = self.unusable.get(kind, 0) + 1
        self.examples.setdefault(kind, example)

    def say_made(self, shape: Shape, how: str, deep: int, window: Window | None) -> None:
        """Say what was made: the shape, how many were resized and how, what deep values became."""
        channels, height, width = shape
        self.made = f"{height}x{width} pixels, {channels} channel(s)"
        if resized := self.images - self.sizes[f"{height}x{width}"]:
            self.made += f'; {resized} images were resized (resize="{how}")'
        if window is not None:
            self.window = f"{window.low!r},{window.high!r}"
        if deep and window is not None:
            self.made += f"; {deep} images of more than 8 bits: {window} is black, white"

    def refuse_errors(self) -> None:
        """Raise an `IntakeError` for what a run must not be trained on."""
        if self.errors:
            rest = f" (and {len(self.errors) - 1} more)" if len(self.errors) > 1 else ""
            raise IntakeError(f"{self.source}: {self.errors[0]}{rest}", self)

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        found = [f"found: {self.found} files; read: {self.read}, which give {self.images} images"]
        found += [f"understood: {line}" for line in self.layout]
        for kind, per_class in self.left_out.items():
            where = ", ".join(
                f"{name or 'beside the class folders'} {count}" for name, count in per_class.items()
            )
            count = sum(per_class.values())
            found.append(f"left out: {count} {kind} ({where}; as {self.examples[kind]})")
        if self.left_out:
            found.append(f"harmless by name: {', '.join(HARMLESS)}")
        found += [
            f"not usable: {count} {kind}, as {self.examples[kind]}"
            for kind, count in self.unusable.items()
        ]
        for title, counts in (
            ("formats", self.kinds),
            ("colours and depths", self.modes),
            ("sizes (height x width)", self.sizes),
            ("done", self.notes),
        ):
            if counts:
                found.append(f"{title}: {_most_common(counts)}")
        if self.made:
            found.append(f"made: {self.made}, {self.bytes / 2**20:.1f} MiB on disk, mapped")
        if self.patients:
            found.append(f"patients: {self.patients}")
        for name, part in self.parts.items():
            patients = "" if part.patients is None else f" of {part.patients} patients"
            classes = ", ".join(f"{shown(c)} {n}" for c, n in part.per_class.items())
            found.append(f"{name}: {part.images} images{patients}; per class: {classes}")
        found += [f"warning: {line}" for line in self.warnings]
        found += [f"error: {line}" for line in self.errors]
        return found

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` makes a report of again."""
        return {**vars(self), "parts": {name: vars(part) for name, part in self.parts.items()}}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "IntakeReport":
        """Return the report that `to_json` wrote."""
        parts = {name: PartReport(**part) for name, part in values.pop("parts").items()}
        report = cls(**values, parts=parts)
        for name in ("kinds", "modes", "sizes", "notes"):
            setattr(report, name, Counter(values[name]))
        return report


def _most_common(counts: Counter[str]) -> str:
    listed = [f"{name} {count}" for name, count in counts.most_common(_MOST_LISTED)]
    rest = len(counts) - len(listed)
    if rest > 0:
        others = sum(counts.values()) - sum(n for _, n in counts.most_common(_MOST_LISTED))
        listed.append(f"{rest} others {others}")
    return ", ".join(listed)


class IntakeError(DataError):
    """Data that cannot be used as they are.

    Attributes
    ----------
    report : IntakeReport
        As far as it got.
    """

    def __init__(self, message: str, report: IntakeReport) -> None:
        super().__init__(message)
        self.report = report
