"""`fedadb analyse`: each read-out of one run, as pictures and CSV files in its folder."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedadb_app.analysis.anchor_privacy import anchor_privacy, plot_anchors
from fedadb_app.analysis.drift import plot_drift, read_drift
from fedadb_app.analysis.embedding_plots import plot_pca_and_correlation, plot_tsne
from fedadb_app.analysis.embeddings import correlation, features_of, pca, tsne
from fedadb_app.analysis.hessian import top_eigenpairs, training_sample
from fedadb_app.analysis.landscape import loss_surface, plot_surfaces
from fedadb_app.analysis.runs import SavedRun
from fedadb_app.errors import ConfigError, DataError, FedADBError

ReadOut = Callable[[SavedRun, int, Path], Mapping[str, float]]
"""(run, round, folder to write to) -> the numbers that say it in short."""

DRIFT = "drift"
"""The read-out that needs no model, and is of no single round."""


def _write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _hessian(run: SavedRun, server_round: int, folder: Path) -> Mapping[str, float]:
    """Table 5 and Figure 6: the spectrum, and the loss along the two leading eigenvectors."""
    model, data = run.model(server_round), training_sample(run)
    spectrum = top_eigenpairs(model, data, run.config)
    _write(
        folder / "hessian.csv",
        [{"rank": i, "eigenvalue": v} for i, v in enumerate(spectrum.eigenvalues, start=1)],
    )
    first, second = spectrum.eigenvectors[:2]
    surface = loss_surface(model, data, run.config, first, second)
    _write(folder / "landscape.csv", surface.rows())
    plot_surfaces({f"round {server_round}": surface}, folder / "landscape.png")
    return {
        "lambda1": spectrum.eigenvalues[0],
        "lambda1/lambda5": spectrum.anisotropy,
        "training accuracy, %": spectrum.accuracy,
    }


def _embeddings(run: SavedRun, server_round: int, folder: Path) -> Mapping[str, float]:
    """Figures 7 and 8: where anchors lie among real images, and how they correlate."""
    model = run.model(server_round)
    features = features_of(model, run.anchors(model, server_round), run)
    stage, placed, projected = (
        f"round {server_round}",
        tsne(features, run.config.seed),
        pca(features),
    )
    _write(folder / "tsne.csv", placed.rows())
    plot_tsne({stage: placed}, folder / "tsne.png")
    _write(folder / "pca.csv", projected.rows())
    plot_pca_and_correlation({stage: projected}, folder / "pca.png")
    found = correlation(projected), correlation(features)
    _write(folder / "correlation-pca.csv", found[0].rows())
    _write(folder / "correlation-features.csv", found[1].rows())
    return {
        "r with the own class (3 components)": found[0].own_class,
        "r with other classes (3 components)": found[0].other_classes,
        "r with the own class (features)": found[1].own_class,
        "r with other classes (features)": found[1].other_classes,
    }


def _anchors(run: SavedRun, server_round: int, folder: Path) -> Mapping[str, float]:
    """Figure 9: the anchors as pictures, and their PSNR to the nearest real image."""
    anchors = run.anchors(run.model(server_round), server_round)
    found = anchor_privacy(anchors, run)
    _write(folder / "anchors.csv", found.rows())
    plot_anchors({f"round {server_round}": found}, folder / "anchors.png")
    return {
        "anchor quality tau": anchors.quality,
        "highest PSNR of an anchor, dB": float(found.psnr.max()),
        "median PSNR between real images, dB": found.median_real_psnr,
    }


def _drift(run: SavedRun, server_round: int, folder: Path) -> Mapping[str, float]:
    """How far clients move and how far apart, over all rounds."""
    del server_round
    found = read_drift(run.folder)
    _write(folder / "drift.csv", found.rows())
    plot_drift({run.config.strategy: found}, folder / "drift.png")
    return {f"{name}, mean over rounds": float(v.mean()) for name, v in found.values.items()}


READ_OUTS: Mapping[str, ReadOut] = {
    "hessian": _hessian,
    "embeddings": _embeddings,
    "anchors": _anchors,
    DRIFT: _drift,
}


def applicable(run: SavedRun) -> list[str]:
    """Return the read-outs that a run may have: anchors, if it made any; drift, if not secret."""
    without = set() if run.anchor_settings else {"embeddings", "anchors"}
    if run.config.privacy != "none":
        without.add(DRIFT)
    return [name for name in READ_OUTS if name not in without]


@dataclass(frozen=True)
class Made:
    """A read-out that was made or failed: where to, and its numbers or what went wrong."""

    name: str
    folder: Path
    numbers: Mapping[str, float]
    problem: FedADBError | None = None


def make(run: SavedRun, names: Sequence[str], server_round: int | None) -> Iterator[Made]:
    """Make read-outs one after another, each in its folder below the run's.

    Parameters
    ----------
    run : SavedRun
        Which run.
    names : Sequence[str]
        Which read-outs; none for all that are `applicable`.
    server_round : int or None
        Whose model they are of; None for the last that is kept.

    Raises
    ------
    ConfigError
        If a name is unknown.
    DataError, CheckpointError
        If the round is not kept, or nothing can be written.
    """
    names = names or applicable(run)
    if unknown := [name for name in names if name not in READ_OUTS]:
        raise ConfigError(f"--what {unknown[0]}: choose among {', '.join(READ_OUTS)}")
    chosen = 0 if set(names) == {DRIFT} else run.chosen(server_round)
    folder = run.folder / "analysis"
    for name in dict.fromkeys(names):
        target = folder if name == DRIFT else folder / f"round{chosen:04}"
        try:
            target.mkdir(parents=True, exist_ok=True)
            yield Made(name, target, READ_OUTS[name](run, chosen, target))
        except OSError as error:  # the others could not be written either
            raise DataError(f"{target} cannot be written to: {error}") from error
        except FedADBError as error:  # the other read-outs are worth having
            yield Made(name, target, {}, error)
