"""``sites.csv``: what each site found on its held-out images, in the last evaluated round."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedadb_app.metrics import BESIDE_ACCURACY
from fedadb_app.runs.atomic import replace
from fedadb_app.runs.record import cell
from fedadb_app.runs.tables import Table, csv_text, read_table

SITES = "sites.csv"
HEADER = ("round", "site", "class", "images", "correct", "accuracy", *BESIDE_ACCURACY)

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
    metrics : Mapping[str, float]
        Those of `BESIDE_ACCURACY` that the node tells.
    """

    images: int
    correct: int
    class_images: Sequence[int] = ()
    class_correct: Sequence[int] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)


def over_sites(sites: Mapping[int, Site]) -> list[tuple[str, int | None, float]]:
    """Return what ``metrics.csv`` says of a round's sites, each site counting once but in accuracy.

    Accuracy over all images; the worst site's; the mean of the worst tenth of the sites, rounded up
    (Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020); the standard deviation
    over sites; how many sites, and images. Of each metric that sites tell, the mean over these,
    weighted by their images, which is not that of all images together, and how many sites tell it.

    Parameters
    ----------
    sites : Mapping[int, Site]
        By client, at least one, each with an image.
    """
    images = np.array([site.images for site in sites.values()])
    correct = np.array([site.correct for site in sites.values()])
    rising = np.sort(100 * correct / images)
    tenth = rising[: math.ceil(_WORST_SHARE * len(rising))]
    found: list[tuple[str, int | None, float]] = [
        ("accuracy", None, float(100 * correct.sum() / images.sum())),
        ("worst-site", None, float(rising[0])),
        ("worst-tenth", None, float(tenth.mean())),
        ("spread", None, float(rising.std())),
        ("sites", None, len(rising)),
        ("images", None, int(images.sum())),
    ]
    for name in BESIDE_ACCURACY:
        # In the order of identities, so that the sum does not depend on who was fastest.
        telling = [sites[client] for client in sorted(sites) if name in sites[client].metrics]
        if telling:
            weights = [site.images for site in telling]
            mean = np.average([site.metrics[name] for site in telling], weights=weights)
            found += [(name, None, float(mean)), (f"{name}-sites", None, len(telling))]
    return found


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
        metrics = [cell("", site.metrics.get(name, math.nan)) for name in BESIDE_ACCURACY]
        rows.append((server_round, client, "", site.images, site.correct, accuracy, *metrics))
        for name, images, correct in zip(
            class_names if site.class_images else (),
            site.class_images,
            site.class_correct,
            strict=True,
        ):
            known = correct >= 0
            share = cell("accuracy", 100 * correct / images) if known else ""
            if images >= 0:
                counted = (images, correct if known else "", share)
                rows.append((server_round, client, name, *counted, *[""] * len(BESIDE_ACCURACY)))
    replace(run_folder / SITES, csv_text(rows).encode())


def read_sites(text: str) -> Table:
    """Parse ``sites.csv``.

    Raises
    ------
    ValueError, csv.Error
        If it has other columns, or a count, an accuracy or a metric is no number.
    """
    table = read_table(text, HEADER)
    for row in table.rows:
        known = all(math.isfinite(float(value or 0)) for value in row[5:])
        if not known or int(row[3]) < int(row[4] or 0):
            raise ValueError(f"site {row[1]} has {row[4]} of {row[3]} images, {row[5]} %")
    return table
