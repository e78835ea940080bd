"""``sites.csv``: what each site found on its held-out images, in the last evaluated round."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedadb_app.runs.atomic import replace
from fedadb_app.runs.record import cell
from fedadb_app.runs.tables import Table, csv_text, read_table

SITES = "sites.csv"
HEADER = ("round", "site", "class", "images", "correct", "accuracy")

_WORST_SHARE = 0.1


@dataclass(frozen=True)
class Site:
    """What a site found.

    Attributes
    ----------
    images, correct : int
        Held-out images, and those classified correctly.
    class_images, class_correct : Sequence[int]
        The same per class, negative where the node withholds it; empty where it tells of none.
    """

    images: int
    correct: int
    class_images: Sequence[int] = ()
    class_correct: Sequence[int] = ()


def over_sites(sites: Mapping[int, Site]) -> list[tuple[str, int | None, float]]:
    """Return what ``metrics.csv`` says of a round's sites, each site counting once but in accuracy.

    Accuracy over all images; the worst site's; the mean of the worst tenth of the sites, rounded up
    (Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020); the standard deviation
    over sites; how many sites, and images.

    Parameters
    ----------
    sites : Mapping[int, Site]
        By client, at least one, each with an image.
    """
    images = np.array([site.images for site in sites.values()])
    correct = np.array([site.correct for site in sites.values()])
    rising = np.sort(100 * correct / images)
    tenth = rising[: math.ceil(_WORST_SHARE * len(rising))]
    return [
        ("accuracy", None, float(100 * correct.sum() / images.sum())),
        ("worst-site", None, float(rising[0])),
        ("worst-tenth", None, float(tenth.mean())),
        ("spread", None, float(rising.std())),
        ("sites", None, len(rising)),
        ("images", None, int(images.sum())),
    ]


def write_sites(
    run_folder: Path, server_round: int, sites: Mapping[int, Site], class_names: Sequence[str]
) -> None:
    """Replace ``sites.csv``: a row per site, and one per class that its node tells of.

    Raises
    ------
    StorageError
        If the disk does not take it.
    """
    rows: list[Sequence[object]] = [HEADER]
    for client in sorted(sites):
        site = sites[client]
        accuracy = cell("accuracy", 100 * site.correct / site.images)
        rows.append((server_round, client, "", site.images, site.correct, accuracy))
        for name, images, correct in zip(
            class_names if site.class_images else (),
            site.class_images,
            site.class_correct,
            strict=True,
        ):
            known = correct >= 0
            share = cell("accuracy", 100 * correct / images) if known else ""
            if images >= 0:
                rows.append((server_round, client, name, images, correct if known else "", share))
    replace(run_folder / SITES, csv_text(rows).encode())


def read_sites(text: str) -> Table:
    """Parse ``sites.csv``.

    Raises
    ------
    ValueError, csv.Error
        If it has other columns, or a count or an accuracy is no number.
    """
    table = read_table(text)
    if tuple(table.header) != HEADER:
        raise ValueError(f"its columns are not {', '.join(HEADER)}")
    for row in table.rows:
        if not math.isfinite(float(row[5] or 0)) or int(row[3]) < int(row[4] or 0):
            raise ValueError(f"site {row[1]} has {row[4]} of {row[3]} images, {row[5]} %")
    return table
