"""Tables and figures made by looking into each run's global model."""

from collections.abc import Mapping, Sequence

from fedadb_app.analysis.anchor_privacy import AnchorPrivacy, anchor_privacy, plot_anchors
from fedadb_app.analysis.embedding_plots import plot_pca_and_correlation, plot_tsne
from fedadb_app.analysis.embeddings import Embedding, correlation, features_of, pca, tsne
from fedadb_app.analysis.hessian import SAMPLE_SIZE, Spectrum, top_eigenpairs, training_sample
from fedadb_app.analysis.landscape import Surface, loss_surface, plot_surfaces
from fedadb_app.analysis.runs import SavedRun
from fedadb_app.data.batches import LocalData
from fedadb_app.models.classifier import ImageClassifier
from fedadb_app.reproduction.outputs import OURS, Reproduction, measured
from fedadb_app.reproduction.paper import reported
from fedadb_app.reproduction.settings import DEVICE
from fedadb_app.reproduction.tables import Number, Result, title_of
from strategies.registry import method_title


def write_spectrum(reproduction: Reproduction) -> None:
    """Table 5: the Hessian's largest eigenvalues at each method's final model."""

    def find(result: Result) -> Sequence[float]:
        _, _, spectrum = _spectrum(reproduction.run(result))
        return spectrum.eigenvalues[0], spectrum.anisotropy, spectrum.accuracy

    found = reproduction.examine({r.entry.row: r for r in reproduction.complete}, find)
    numbers = []
    for method in (result.entry.row for result in reproduction.results):
        for place, name in enumerate(("lambda1", "lambda1/lambda5", "training accuracy")):
            paper = reported().get(("table5", DEVICE, method, name))
            values = [found[method][place]] if method in found else []
            numbers.append(Number(name, method, values, paper.value if paper else None))
    reproduction.page(
        {"": numbers},
        f"The five algebraically largest eigenvalues of the training loss's Hessian at the final "
        f"global model, on {SAMPLE_SIZE} training images; accuracy on the same, in %. {OURS}",
    )


def _spectrum(run: SavedRun) -> tuple[ImageClassifier, LocalData, Spectrum]:
    """Return a run's final model, training images, and the leading eigenpairs on them."""
    model, data = run.model(run.chosen(run.config.num_server_rounds)), training_sample(run)
    return model, data, top_eigenpairs(model, data, run.config)


def write_surfaces(reproduction: Reproduction) -> None:
    """Figure 6: the training loss around each method's final model."""

    def find(result: Result) -> Surface:
        run = reproduction.run(result)
        model, data, spectrum = _spectrum(run)
        first, second = spectrum.eigenvectors[:2]
        return loss_surface(model, data, run.config, first, second)

    surfaces = reproduction.examine({r.entry.row: r for r in reproduction.complete}, find)
    numbers: list[Number] = []
    for method, surface in surfaces.items():
        centre = len(surface.offsets) // 2
        numbers += measured(
            method,
            {
                "loss of the model": surface.loss[centre, centre],
                "highest loss around it": surface.loss.max(),
            },
        )
    picture = reproduction.path(".png")
    plot_surfaces({method_title(method): s for method, s in surfaces.items()}, picture)
    reproduction.page(
        {"": numbers},
        "Training loss along the two leading eigenvectors of its Hessian, of length one.",
        [picture],
    )


def _stages(reproduction: Reproduction, run: SavedRun) -> Mapping[str, Embedding]:
    """Return features of real images and anchors at the first snapshot and at the last round."""

    def find(server_round: int) -> Embedding:
        model = run.model(run.chosen(server_round))
        return features_of(model, run.anchors(model, server_round), run)

    early = int(reproduction.complete[0].entry.setting.values["snapshot-every"])
    rounds = early, run.config.num_server_rounds
    return reproduction.examine({f"round {number}": number for number in rounds}, find)


def write_tsne(reproduction: Reproduction) -> None:
    """Figure 7: anchors among real images, placed by t-SNE."""
    run = reproduction.run(reproduction.complete[0])
    stages = _stages(reproduction, run)
    placed = {stage: tsne(space, run.config.seed) for stage, space in stages.items()}
    picture = reproduction.path(".png")
    plot_tsne(placed, picture)
    reproduction.page(
        {}, "Features of test images (dots) and class anchors (stars), by t-SNE.", [picture]
    )


def write_components(reproduction: Reproduction) -> None:
    """Figure 8: anchors' principal components, and their correlation with class centres."""
    stages = _stages(reproduction, reproduction.run(reproduction.complete[0]))
    projected = {stage: pca(space) for stage, space in stages.items()}
    picture = reproduction.path(".png")
    plot_pca_and_correlation(projected, picture)
    numbers: list[Number] = []
    for stage, whole in stages.items():
        for space, found in {
            "three components": correlation(projected[stage]),
            "all features": correlation(whole),
        }.items():
            numbers += measured(
                stage,
                {
                    f"{space}: anchor and its own class": found.own_class,
                    f"{space}: anchor and others": found.other_classes,
                },
            )
    reproduction.page(
        {"": numbers},
        "Mean Pearson correlation of class anchors with the centres of real classes.",
        [picture],
    )


def write_anchors(reproduction: Reproduction) -> None:
    """Figure 9: the anchors, and how near the nearest training image is."""

    def find(result: Result) -> AnchorPrivacy:
        run = reproduction.run(result)
        last = run.chosen(run.config.num_server_rounds)
        return anchor_privacy(run.anchors(run.model(last), last), run)

    by_column = {title_of(r.entry.column): r for r in reproduction.complete}
    groups = reproduction.examine(by_column, find)
    numbers: list[Number] = []
    for name, found in groups.items():
        numbers += measured(
            name,
            {
                "lowest PSNR of an anchor, dB": found.psnr.min(),
                "highest PSNR of an anchor, dB": found.psnr.max(),
                "median PSNR between real images, dB": found.median_real_psnr,
            },
        )
    picture = reproduction.path(".png")
    plot_anchors(groups, picture)
    reproduction.page(
        {"": numbers},
        "Class anchors of the final global model, each above the training image nearest to it.",
        [picture],
    )
