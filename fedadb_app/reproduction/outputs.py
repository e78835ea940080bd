"""What each table and figure is written as: a page, the numbers as CSV, and pictures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fedadb_app.analysis.anchor_privacy import AnchorPrivacy, anchor_privacy, plot_anchors
from fedadb_app.analysis.embeddings import (
    Embedding,
    correlation,
    features_of,
    pca,
    plot_pca_and_correlation,
    plot_tsne,
    tsne,
)
from fedadb_app.analysis.hessian import SAMPLE_SIZE, Spectrum, top_eigenpairs, training_sample
from fedadb_app.analysis.landscape import Surface, loss_surface, plot_surfaces
from fedadb_app.analysis.runs import SavedRun
from fedadb_app.comparison.plots import plot_classes, plot_curves
from fedadb_app.data.batches import LocalData
from fedadb_app.errors import DataError, FedADBError
from fedadb_app.models.classifier import ImageClassifier
from fedadb_app.reproduction.figures import plot_sweeps
from fedadb_app.reproduction.paper import reported
from fedadb_app.reproduction.study import DEVICE, Study
from fedadb_app.reproduction.tables import (
    Number,
    Result,
    accuracies,
    rounds_to_targets,
    title_of,
    write_csv,
    write_page,
)
from strategies.registry import method_title

T = TypeVar("T")
Found = TypeVar("Found")

_OURS = "Each cell: ours (the paper's, the difference)."
_BEST5 = (
    f"Mean of the five best rounds, test accuracy in %, ± sample standard deviation over seeds. "
    f"{_OURS}"
)


@dataclass(frozen=True)
class Reproduction:
    """A study, its complete runs, and where it is written.

    Attributes
    ----------
    study : Study
        Which table or figure.
    results : Sequence[Result]
        Its entries with their complete runs.
    open_run : Callable
        Opens a run's folder.
    folder : Path
        Where to.
    complain : Callable
        Says what is missing; what it has said before, it does not repeat.
    """

    study: Study
    results: Sequence[Result]
    open_run: Callable[[Path], SavedRun]
    folder: Path
    complain: Callable[[str], None]

    def path(self, suffix: str) -> Path:
        """Return the item's file of a kind."""
        return self.folder / f"{self.study.item}{suffix}"

    def page(
        self,
        sections: Mapping[str, Sequence[Number]],
        explained: str,
        pictures: Sequence[Path] = (),
    ) -> None:
        """Write the page and the numbers."""
        runs = {
            (r.entry.setting.name, r.entry.strategy, r.entry.alpha): len(r.readings)
            for r in self.results  # two entries may show the same runs
        }
        wanted, there = len(runs) * len(self.study.seeds), sum(runs.values())
        if there < wanted:
            explained += f" {wanted - there} of {wanted} runs are missing."
        write_csv(self.path(".csv"), sections)
        write_page(self.path(".md"), self.study, sections, explained, pictures)

    @property
    def accuracies(self) -> Sequence[Number]:
        """The mean of the five best rounds of each entry."""
        return accuracies(self.results, len(self.study.seeds))

    @property
    def complete(self) -> Sequence[Result]:
        """The entries that have a run."""
        return [result for result in self.results if result.readings]

    def run(self, result: Result) -> SavedRun:
        """Open the run of an entry's first seed."""
        return self.open_run(result.folders[0])

    def look(self, things: Mapping[str, T], into: Callable[[T], Found]) -> Mapping[str, Found]:
        """Return what is found in each thing; say what cannot be looked into.

        Raises
        ------
        FedADBError
            If nothing can.
        """
        found, errors = {}, []
        for name, thing in things.items():
            try:
                found[name] = into(thing)
            except FedADBError as error:  # the others are worth having
                errors.append(error)
                self.complain(str(error))
        if not found:
            raise errors[0]
        return found


def write(reproduction: Reproduction) -> Path:
    """Write a table or figure from the runs that are complete; return its page.

    Raises
    ------
    FedADBError
        If no run is complete, or none can be looked into: its data are not on this machine, its
        model is not kept or is damaged, or has no finite Hessian or loss.
    """
    if not reproduction.complete:
        raise DataError("no run is complete, so there is nothing to write")
    _WRITERS[reproduction.study.item](reproduction)
    return reproduction.path(".md")


# --- tables ---------------------------------------------------------------------------------


def _accuracy_table(it: Reproduction) -> None:
    by_scenario: dict[str, list[Number]] = {}
    for result, number in zip(it.results, it.accuracies, strict=True):
        by_scenario.setdefault(result.entry.setting.scenario, []).append(number)
    it.page(by_scenario, _BEST5)


def _rounds_table(it: Reproduction) -> None:
    sections = {
        title_of(column): numbers for column, numbers in rounds_to_targets(it.complete).items()
    }
    it.page(
        sections,
        f"First round in which the smoothed mean accuracy (EWMA, factor 0.2) reaches a target; –: "
        f"never. Targets: 45, 65 and 85 % of the highest accuracy of any method here, and the "
        f"paper's own. {_OURS}",
    )


def _measured(column: str, values: Mapping[str, float]) -> list[Number]:
    """Return numbers of a column, row by row, that the paper does not report."""
    return [Number(row, column, [float(value)], None) for row, value in values.items()]


def _spectrum(run: SavedRun) -> tuple[ImageClassifier, LocalData, Spectrum]:
    """Return a run's final model, training images, and the leading eigenpairs on them."""
    model, data = run.model(run.chosen(run.config.num_server_rounds)), training_sample(run)
    return model, data, top_eigenpairs(model, data, run.config)


def _spectrum_table(it: Reproduction) -> None:
    def look(result: Result) -> Sequence[float]:
        _, _, spectrum = _spectrum(it.run(result))
        return spectrum.eigenvalues[0], spectrum.anisotropy, spectrum.accuracy

    found = it.look({r.entry.row: r for r in it.complete}, look)
    numbers = []
    for method in (r.entry.row for r in it.results):
        for place, name in enumerate(("lambda1", "lambda1/lambda5", "training accuracy")):
            paper = reported().get(("table5", DEVICE, method, name))
            values = [found[method][place]] if method in found else []
            numbers.append(Number(name, method, values, paper.value if paper else None))
    it.page(
        {"": numbers},
        f"The five algebraically largest eigenvalues of the training loss's Hessian at the final "
        f"global model, on {SAMPLE_SIZE} training images; accuracy on the same, in %. {_OURS}",
    )


# --- figures --------------------------------------------------------------------------------


def _sweeps(it: Reproduction) -> None:
    numbers = it.accuracies
    picture = it.path(".png")
    plot_sweeps(numbers, picture)
    it.page({"": numbers}, _BEST5, [picture])


def _curves(it: Reproduction) -> None:
    pictures = []
    for column in dict.fromkeys(r.entry.column for r in it.complete):
        readings = [x for r in it.complete if r.entry.column == column for x in r.readings]
        pictures.append(it.path(f"-{column.replace(' ', '-alpha')}.png"))
        plot_curves(readings, pictures[-1])
    it.page({"": it.accuracies}, _BEST5, pictures)


def _classes(it: Reproduction) -> None:
    picture = it.path(".png")
    plot_classes([r.readings[0] for r in it.complete], picture)
    forgetting = [
        Number(r.entry.row, "forgetting", [x.forgetting for x in r.readings], None)
        for r in it.complete
    ]
    it.page(
        {"": forgetting},
        "Test accuracy of each class over rounds. Forgetting: mean drop of per-class accuracy from "
        "its running best, in points.",
        [picture],
    )


def _surfaces(it: Reproduction) -> None:
    def look(result: Result) -> Surface:
        run = it.run(result)
        model, data, spectrum = _spectrum(run)
        first, second = spectrum.eigenvectors[:2]
        return loss_surface(model, data, run.config, first, second)

    surfaces = it.look({r.entry.row: r for r in it.complete}, look)
    numbers: list[Number] = []
    for method, surface in surfaces.items():
        centre = len(surface.offsets) // 2
        numbers += _measured(
            method,
            {
                "loss of the model": surface.loss[centre, centre],
                "highest loss around it": surface.loss.max(),
            },
        )
    picture = it.path(".png")
    plot_surfaces({method_title(method): s for method, s in surfaces.items()}, picture)
    it.page(
        {"": numbers},
        "Training loss along the two leading eigenvectors of its Hessian, of length one.",
        [picture],
    )


def _stages(it: Reproduction, run: SavedRun) -> Mapping[str, Embedding]:
    """Return features of real images and anchors at the first snapshot and at the last round."""

    def look(server_round: int) -> Embedding:
        model = run.model(run.chosen(server_round))
        return features_of(model, run.anchors(model, server_round), run)

    early = int(it.complete[0].entry.setting.values["snapshot-every"])
    rounds = early, run.config.num_server_rounds
    return it.look({f"round {server_round}": server_round for server_round in rounds}, look)


def _tsne(it: Reproduction) -> None:
    run = it.run(it.complete[0])
    placed = {stage: tsne(space, run.config.seed) for stage, space in _stages(it, run).items()}
    picture = it.path(".png")
    plot_tsne(placed, picture)
    it.page({}, "Features of test images (dots) and class anchors (stars), by t-SNE.", [picture])


def _components(it: Reproduction) -> None:
    stages = _stages(it, it.run(it.complete[0]))
    projected = {stage: pca(space) for stage, space in stages.items()}
    picture = it.path(".png")
    plot_pca_and_correlation(projected, picture)
    numbers: list[Number] = []
    for stage, whole in stages.items():
        for space, found in {
            "three components": correlation(projected[stage]),
            "all features": correlation(whole),
        }.items():
            numbers += _measured(
                stage,
                {
                    f"{space}: anchor and its own class": found.own_class,
                    f"{space}: anchor and others": found.other_classes,
                },
            )
    it.page(
        {"": numbers},
        "Mean Pearson correlation of class anchors with the centres of real classes.",
        [picture],
    )


def _anchors(it: Reproduction) -> None:
    def look(result: Result) -> AnchorPrivacy:
        run = it.run(result)
        last = run.chosen(run.config.num_server_rounds)
        return anchor_privacy(run.anchors(run.model(last), last), run)

    groups = it.look({title_of(r.entry.column): r for r in it.complete}, look)
    numbers: list[Number] = []
    for name, found in groups.items():
        numbers += _measured(
            name,
            {
                "lowest PSNR of an anchor, dB": found.psnr.min(),
                "highest PSNR of an anchor, dB": found.psnr.max(),
                "median PSNR between real images, dB": found.median_real_psnr,
            },
        )
    picture = it.path(".png")
    plot_anchors(groups, picture)
    it.page(
        {"": numbers},
        "Class anchors of the final global model, each above the training image nearest to it.",
        [picture],
    )


_WRITERS: Mapping[str, Callable[[Reproduction], None]] = {
    "table1": _accuracy_table,
    "table2": _rounds_table,
    "table3": _accuracy_table,
    "table4": _accuracy_table,
    "table5": _spectrum_table,
    "table6": _accuracy_table,
    "figure2": _sweeps,
    "figure3": _sweeps,
    "figure4": _curves,
    "figure5": _classes,
    "figure6": _surfaces,
    "figure7": _tsne,
    "figure8": _components,
    "figure9": _anchors,
}
