"""Tables and figures made of what each run's tables say: accuracy over rounds, and per class."""

from fedadb_app.comparison.plots import plot_classes, plot_curves
from fedadb_app.reproduction.figures import plot_sweeps
from fedadb_app.reproduction.outputs import OURS, Reproduction
from fedadb_app.reproduction.sweeps import BASELINE
from fedadb_app.reproduction.tables import Number, rounds_to_targets, title_of


def write_accuracies(reproduction: Reproduction) -> None:
    """Tables 1, 3, 4 and 6: the mean of the five best rounds."""
    by_scenario: dict[str, list[Number]] = {}
    for result, number in zip(reproduction.results, reproduction.accuracies, strict=True):
        by_scenario.setdefault(result.entry.setting.scenario, []).append(number)
    reproduction.page(by_scenario, reproduction.accuracies_explained)


def write_rounds_to_targets(reproduction: Reproduction) -> None:
    """Table 2: the round in which each method reaches a target."""
    sections = {
        title_of(column): numbers
        for column, numbers in rounds_to_targets(reproduction.complete).items()
    }
    reproduction.page(
        sections,
        f"First round in which the smoothed mean accuracy (EWMA, factor 0.2) reaches a target; –: "
        f"never. Targets: 45, 65 and 85 % of the highest accuracy of any method here, and the "
        f"paper's own. {OURS}",
    )


def write_sweeps(reproduction: Reproduction) -> None:
    """Figures 2 and 3: accuracy over what is varied."""
    numbers, picture = reproduction.accuracies, reproduction.path(".png")
    plot_sweeps(numbers, BASELINE, picture)
    reproduction.page({"": numbers}, reproduction.accuracies_explained, [picture])


def write_curves(reproduction: Reproduction) -> None:
    """Figure 4: accuracy over rounds, a picture per data set and alpha."""
    pictures = []
    for column in dict.fromkeys(r.entry.column for r in reproduction.complete):
        readings = [
            reading
            for result in reproduction.complete
            if result.entry.column == column
            for reading in result.readings
        ]
        pictures.append(reproduction.path(f"-{column.replace(' ', '-alpha')}.png"))
        plot_curves(readings, pictures[-1])
    reproduction.page({"": reproduction.accuracies}, reproduction.accuracies_explained, pictures)


def write_class_accuracy(reproduction: Reproduction) -> None:
    """Figure 5: accuracy per class over rounds."""
    picture = reproduction.path(".png")
    plot_classes([result.readings[0] for result in reproduction.complete], picture)
    forgetting = [
        Number(
            result.entry.row,
            "forgetting",
            [reading.forgetting for reading in result.readings],
            None,
        )
        for result in reproduction.complete
    ]
    reproduction.page(
        {"": forgetting},
        "Test accuracy of each class over rounds. Forgetting: mean drop of per-class accuracy from "
        "its running best, in points.",
        [picture],
    )
