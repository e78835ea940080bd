"""Which runs each table and figure is made of, in full and at a scale for two cores."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fedadb_app.data.datasets.styles import STYLED
from fedadb_app.errors import ConfigError
from fedadb_app.reproduction.entries import Entry, Study
from fedadb_app.reproduction.settings import (
    DATASETS,
    DEVICE,
    SILO,
    SMALL,
    Scale,
    Setting,
    setting_of,
)
from fedadb_app.reproduction.sweeps import BASELINE, FIGURE_2, FIGURE_3, sweep_entries

TABLE_1_METHODS = (
    "fedavg",
    "feddyn",
    "fedasam",
    "fedntd",
    "fedgela",
    "fedexp",
    "fedlmd",
    "feddecorr",
    "fedacg",
    "fedsol",
    "fedadb",
)
"""In its order."""

_FIVE_METHODS = ("fedavg", "fedntd", "fedlmd", "fedsol", "fedadb")  # Tables 5 and 6, Figure 6

_ABLATION_ROUNDS = 60
_SWEEP_ROUNDS = 20


def _column(dataset: str, alpha: float) -> str:
    return f"{dataset} {alpha:g}"


def _entries(
    item: str,
    scale: Scale,
    scenario: str,
    columns: Sequence[tuple[str, float]],
    methods: Sequence[str],
) -> list[Entry]:
    """Return methods by data sets."""
    return [
        Entry(
            row=method,
            column=_column(dataset, alpha),
            setting=setting_of(scale, scenario, dataset),
            strategy=method,
            alpha=alpha,
            paper=(item, scenario, method, _column(dataset, alpha)),
        )
        for dataset, alpha in columns
        for method in methods
    ]


# --- the items ------------------------------------------------------------------------------

_TABLE_1 = (
    ("svhn", 0.1),
    ("cinic10", 0.1),
    *(("cifar10", alpha) for alpha in (0.05, 0.1, 0.2, 0.5)),
    ("cifar100", 0.1),
    ("organamnist", 0.1),
    ("pathmnist", 0.1),
    ("tissuemnist", 0.1),
)
_THREE, _ONE = (0, 1, 2), (0,)
_ON_PATHMNIST = "PathMNIST with LeNet"
_IN_100 = "100 rounds instead of 1000."


def _columns(scale: Scale, full: Sequence[tuple[str, float]]) -> Sequence[tuple[str, float]]:
    return full if scale == "full" else ((SMALL, 0.1),)


def _table1(scale: Scale) -> Study:
    return Study(
        "table1",
        "Test accuracy of all methods, cross-device and cross-silo",
        _THREE if scale == "full" else _ONE,
        [
            entry
            for scenario in (DEVICE, SILO)
            for entry in _entries(
                "table1", scale, scenario, _columns(scale, _TABLE_1), TABLE_1_METHODS
            )
        ],
        f"{_ON_PATHMNIST}.",
        "100 rounds instead of 1000 (cross-silo, where a round is four times the work: 10).",
    )


def _table2(scale: Scale) -> Study:
    return Study(
        "table2",
        "Rounds to reach 45, 65 and 85 % of the best accuracy",
        _THREE if scale == "full" else _ONE,
        _entries("table2", scale, DEVICE, _columns(scale, _TABLE_1), TABLE_1_METHODS),
        f"{_ON_PATHMNIST}.",
        _IN_100,
    )


def _table3(scale: Scale) -> Study:
    alphas = (0.05, 0.1, 0.2) if scale == "full" else (0.1,)
    base = setting_of(scale, DEVICE, "cifar10")
    if scale == "small":
        base = setting_of(scale, DEVICE, SMALL).changed("num-server-rounds", _ABLATION_ROUNDS)
    rows = {
        "fedavg": (base, "fedavg"),
        "use-anchors=false": (base.changed("fedadb.use-anchors", False), "fedadb"),
        "use-lcb=false": (base.changed("fedadb.use-lcb", False), "fedadb"),
        "fedadb": (base, "fedadb"),
    }
    return Study(
        "table3",
        "Ablation: without both, without class anchors (CAG), without LCB, all",
        _THREE,
        [
            Entry(
                row,
                _column(base.dataset, alpha),
                setting,
                strategy,
                alpha,
                ("table3", DEVICE, row, _column("cifar10", alpha)),
            )
            for alpha in alphas
            for row, (setting, strategy) in rows.items()
        ],
        f"{_ON_PATHMNIST}; beside the paper's CIFAR-10, alpha = 0.1.",
        f"{_ABLATION_ROUNDS} rounds instead of 1000.",
    )


def _table4(scale: Scale) -> Study:
    bases = [_sweep_setting(scale)]
    if scale == "full":
        bases.append(setting_of(scale, DEVICE, "cifar100"))
    weights = ("0.1", "0.3", "0.5", "0.7", "0.9")
    return Study(
        "table4",
        "Fixed weights of the LCB against the dynamic one",
        _THREE if scale == "full" else _ONE,
        [
            Entry(
                f"beta={weight}",
                _column(base.dataset, 0.1),
                base if weight == "dynamic" else base.changed("fedadb.beta", weight),
                "fedadb",
                0.1,
                (
                    "table4",
                    DEVICE,
                    f"beta={weight}",
                    _column("cifar10" if scale == "small" else base.dataset, 0.1),
                ),
            )
            for base in bases
            for weight in (*weights, "dynamic")
        ],
        f"{_ON_PATHMNIST}; beside the paper's CIFAR-10.",
        f"{_SWEEP_ROUNDS} rounds instead of 1000.",
    )


def _sweep_setting(scale: Scale) -> Setting:
    if scale == "full":
        return setting_of(scale, DEVICE, "cifar10")
    return setting_of(scale, DEVICE, SMALL).changed("num-server-rounds", _SWEEP_ROUNDS)


def _sweeps(
    item: str, title: str, scale: Scale, keys: Sequence[str], methods: Sequence[str]
) -> Study:
    return Study(
        item,
        title,
        _THREE if scale == "full" else _ONE,
        sweep_entries(item, _sweep_setting(scale), keys, methods),
        f"{_ON_PATHMNIST}.",
        f"{_SWEEP_ROUNDS} rounds instead of 1000.",
    )


def _figure2(scale: Scale) -> Study:
    title = "FedADB and FedAvg with other anchors per class, local epochs and learning rates"
    return _sweeps("figure2", title, scale, FIGURE_2, (BASELINE, "fedadb"))


def _figure3(scale: Scale) -> Study:
    title = "FedADB with other steps, step size, L2 weight and start of its anchors"
    return _sweeps("figure3", title, scale, FIGURE_3, ("fedadb",))


def _of_methods(
    item: str,
    title: str,
    methods: Sequence[str],
    full: Sequence[tuple[str, float]] = (("cifar10", 0.1),),
    seeds: Sequence[int] = _ONE,
) -> Callable[[Scale], Study]:
    """Return a study that looks at the runs of Table 1."""

    def build(scale: Scale) -> Study:
        return Study(
            item,
            title,
            seeds if scale == "full" else _ONE,
            _entries(item, scale, DEVICE, _columns(scale, full), methods),
            f"{_ON_PATHMNIST}; the paper's: "
            f"{', '.join(dict.fromkeys(DATASETS[d] for d, _ in full))}, ResNet-18.",
            _IN_100,
        )

    return build


def _table6(scale: Scale) -> Study:
    dataset = "pacs" if scale == "full" else STYLED
    return Study(
        "table6",
        "Test accuracy with clients split by domain; the paper: PACS with InceptionV1",
        _THREE if scale == "full" else _ONE,
        [
            replace(entry, column=dataset, paper=("table6", SILO, entry.row, "pacs"))
            for entry in _entries("table6", scale, SILO, ((dataset, 0.1),), _FIVE_METHODS)
        ],
        "PathMNIST's 10 004 validation images, each in one of four artificial styles, instead of "
        "PACS, of which the differences say nothing; LeNet.",
        _IN_100,
    )


STUDIES: Mapping[str, Callable[[Scale], Study]] = {
    "table1": _table1,
    "table2": _table2,
    "table3": _table3,
    "table4": _table4,
    "table5": _of_methods("table5", "Hessian spectrum and training accuracy", _FIVE_METHODS),
    "table6": _table6,
    "figure2": _figure2,
    "figure3": _figure3,
    "figure4": _of_methods("figure4", "Accuracy over rounds", TABLE_1_METHODS, _TABLE_1, _THREE),
    "figure5": _of_methods(
        "figure5", "Accuracy per class over rounds", ("fedavg", "fedlmd", "fedsol", "fedadb")
    ),
    "figure6": _of_methods("figure6", "Loss along the two leading eigenvectors", _FIVE_METHODS),
    "figure7": _of_methods(
        "figure7", "t-SNE of class anchors and real images", ("fedadb",), (("svhn", 0.1),)
    ),
    "figure8": _of_methods(
        "figure8",
        "Principal components and correlation of anchors and class centres",
        ("fedadb",),
        (("svhn", 0.1),),
    ),
    "figure9": _of_methods(
        "figure9",
        "Class anchors and their PSNR",
        ("fedadb",),
        (("cifar10", 0.1), ("svhn", 0.1), ("pathmnist", 0.1)),
    ),
}
"""Figure 1 is a drawing."""


def study_of(item: str, scale: Scale) -> Study:
    """Return a table or figure at a scale.

    Raises
    ------
    ConfigError
        If the paper has no such table or figure with a result.
    """
    if item not in STUDIES:
        raise ConfigError(f"{item} is none of {', '.join(STUDIES)}")
    study = STUDIES[item](scale)
    return replace(study, changed="", rounds="") if scale == "full" else study
