"""Images that are there twice: under two labels an error, under one a warning."""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedadb_app.data.intake.report import IntakeReport


@dataclass
class _Seen:
    labels: set[int]
    parts: set[str]
    count: int
    blank: bool
    example: str


class Duplicates:
    """Counts images by what they look like, before they are resized."""

    def __init__(self) -> None:
        self._seen: dict[bytes, _Seen] = {}

    def add(self, fingerprint: bytes, blank: bool, label: int, part: str, example: str) -> None:
        """Note one image."""
        known = self._seen.setdefault(fingerprint, _Seen(set(), set(), 0, blank, example))
        known.labels.add(label)
        known.parts.add(part)
        known.count += 1

    def tell(self, report: IntakeReport) -> None:
        """Add what was found to a report.

        Images of a single colour are no evidence of a wrong label: they are counted apart.
        """
        several = [s for s in self._seen.values() if s.count > 1 and not s.blank]
        contradictory = [s for s in several if len(s.labels) > 1]
        if contradictory:
            report.errors.append(
                f"{sum(s.count for s in contradictory)} images are there under more than one label "
                f"({len(contradictory)} different pictures, as {contradictory[0].example}): remove "
                f"those with the wrong label"
            )
        same = [s for s in several if len(s.labels) == 1]
        if same:
            report.warnings.append(
                f"{sum(s.count for s in same)} images are there more than once under one label "
                f"({len(same)} different pictures, as {same[0].example})"
            )
        across = [s for s in same if len(s.parts) > 1]
        if across:
            report.warnings.append(
                f"{len(across)} pictures are in the training and in the test part (as "
                f"{across[0].example}): an accuracy on them says nothing of others"
            )
        if blank := sum(s.count for s in self._seen.values() if s.blank):
            example = next(s.example for s in self._seen.values() if s.blank)
            report.warnings.append(f"{blank} images are of a single colour (as {example})")


def fingerprint(pixels: npt.NDArray[np.uint8]) -> tuple[bytes, bool]:
    """Return a digest of an image, ``(height, width, channels)``, and whether it is of one colour.

    A grey image is the same with one and with three channels.
    """
    if pixels.shape[2] == 3 and (pixels[..., :1] == pixels).all():
        pixels = pixels[..., :1]
    content = np.ascontiguousarray(pixels)
    digest = hashlib.blake2b(repr(pixels.shape).encode() + content.tobytes(), digest_size=16)
    return digest.digest(), bool((pixels == pixels[:1, :1]).all())
