"""``personalised.csv``: what each site's own copy of the model finds in its held-out images."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedadb_app.runs.atomic import replace
from fedadb_app.runs.record import cell
from fedadb_app.runs.tables import Table, csv_text, read_table

PERSONALISED = "personalised.csv"
HEADER = (
    "site",
    "head",
    "images",
    "correct_before",
    "correct_after",
    "accuracy_before",
    "accuracy_after",
)


@dataclass(frozen=True)
class Personalised:
    """What a site's heads find in its held-out images, in the model it was sent and in its own.

    Attributes
    ----------
    images : int
        Held-out images.
    before, after : Sequence[int]
        Those classified correctly, per head.
    """

    images: int
    before: Sequence[int]
    after: Sequence[int]


def over_personalised(
    sites: Mapping[int, Personalised], heads: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return what ``summary.json`` says of each head, over sites that count once each.

    Parameters
    ----------
    sites : Mapping[int, Personalised]
        By client, at least one, each with an image.
    heads : Sequence[str]
        The heads by name, in the order of the counts.

    Returns
    -------
    dict[str, dict[str, float]]
        Per head the number of sites, mean and least accuracy before and after (percent), and at how
        many sites it has gained and lost.
    """
    images = np.array([site.images for site in sites.values()])
    found: dict[str, dict[str, float]] = {}
    for position, head in enumerate(heads):
        before = np.array([site.before[position] for site in sites.values()])
        after = np.array([site.after[position] for site in sites.values()])
        found[head] = {"sites": len(sites)}
        for when, correct in (("before", before), ("after", after)):
            shares = 100 * correct / images
            found[head][f"mean_{when}"] = round(float(shares.mean()), 2)
            found[head][f"worst_{when}"] = round(float(shares.min()), 2)
        found[head] |= {"gained": int((after > before).sum()), "lost": int((after < before).sum())}
    return found


def personalised_in_words(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a clause for each head, of numbers or of their texts."""
    return [
        f"personalised, head {head}: mean of {of['sites']} sites {of['mean_before']} to "
        f"{of['mean_after']} %, worst site {of['worst_before']} to {of['worst_after']} %, "
        f"{of['gained']} gained, {of['lost']} lost"
        for head, of in found.items()
    ]


def write_personalised(
    run_folder: Path, sites: Mapping[int, Personalised], heads: Sequence[str]
) -> None:
    """Write ``personalised.csv``: a row per site and head.

    Raises
    ------
    StorageError
        If the disk does not take it.
    """
    rows: list[Sequence[object]] = [HEADER]
    for client in sorted(sites):
        site = sites[client]
        for head, before, after in zip(heads, site.before, site.after, strict=True):
            shares = [cell("accuracy", 100 * count / site.images) for count in (before, after)]
            rows.append((client, head, site.images, before, after, *shares))
    replace(run_folder / PERSONALISED, csv_text(rows).encode())


def read_personalised(text: str) -> Table:
    """Parse ``personalised.csv``.

    Raises
    ------
    ValueError, csv.Error
        If it has other columns, or a count or an accuracy cannot be.
    """
    table = read_table(text, HEADER)
    for site, head, *counts, before, after in table.rows:
        images, *correct = (int(count) for count in counts)
        if not all(0 <= count <= images for count in correct):
            raise ValueError(f"site {site}, head {head}: {correct} of {images} images")
        if not math.isfinite(float(before) + float(after)):
            raise ValueError(f"site {site}, head {head}: {before} and {after} %")
    return table
