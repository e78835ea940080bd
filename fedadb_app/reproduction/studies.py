"""Which runs each table and figure is made of, in full and at a scale for two cores."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from fedadb_app.config import Scalar
from fedadb_app.data.datasets.styles import STYLED
from fedadb_app.errors import ConfigError
from fedadb_app.reproduction.study import DEVICE, SCENARIOS, SILO, Entry, Setting, Study

Scale = Literal["full", "small"]

DATASETS: Mapping[str, str] = {
    "svhn": "SVHN",
    "cinic10": "CINIC-10",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "organamnist": "OrganAMNIST",
    "pathmnist": "PathMNIST",
    "tissuemnist": "TissueMNIST",
    "pacs": "PACS",
    STYLED: "PathMNIST in four styles",
}
"""As the paper writes them, in Table 1's order."""

METHODS = (
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
"""Table 1's order."""

_FEW = ("fedavg", "fedntd", "fedlmd", "fedsol", "fedadb")  # Tables 5 and 6, Figure 6

SMALL = "pathmnist"
"""The data set of the small scale, with LeNet where the paper has ResNet-18."""

_SMALL_ROUNDS = {DEVICE: 100, SILO: 10}
_ABLATION_ROUNDS = 60
_SWEEP_ROUNDS = 20

SWEEPS: Mapping[str, tuple[Scalar, tuple[Scalar, ...]]] = {
    "fedadb.anchors-per-class": (1, (1, 2, 5)),
    "local-epochs": (5, (1, 5, 10)),
    "learning-rate": (0.01, (0.003, 0.01, 0.03)),
    "fedadb.anchor-steps": (100, (25, 100, 400)),
    "fedadb.anchor-learning-rate": (1.0, (0.1, 1.0, 10.0)),
    "fedadb.anchor-l2": (1e-4, (0.0, 1e-4, 0.01)),
    "fedadb.anchor-noise": (1.0, (0.1, 1.0, 2.0)),
}
"""Key -> default, and the values tried. The paper's own values stand in its pictures only."""

FIGURE_2 = ("fedadb.anchors-per-class", "local-epochs", "learning-rate")
FIGURE_3 = tuple(key for key in SWEEPS if key.startswith("fedadb.anchor-"))


# --- settings -------------------------------------------------------------------------------


def _setting(scale: Scale, scenario: str, dataset: str) -> Setting:
    """Return section 5.1's configuration; what equals the app's defaults is left out."""
    rounds = 300 if dataset == "organamnist" else 1000
    model = "googlenet" if dataset == "pacs" else "auto"
    if scale == "small":
        rounds = 100 if dataset == STYLED else _SMALL_ROUNDS[scenario]  # a tenth of the images
        model = "lenet"
    values: dict[str, Scalar] = {
        "dataset": dataset,
        "model": model,
        "num-server-rounds": rounds,
        "fraction-train": SCENARIOS[scenario][1],
    }
    if dataset in {"pacs", STYLED}:
        values["partition"] = "domain"
    if dataset in {"svhn", SMALL} and scenario == DEVICE:  # Figures 7 and 8 need early models
        values["snapshot-every"] = rounds // 10
    return Setting(scenario, values, {})


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
            setting=_setting(scale, scenario, dataset),
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
_IN_100 = f"{_ON_PATHMNIST}, 100 rounds instead of 1000"


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
            for entry in _entries("table1", scale, scenario, _columns(scale, _TABLE_1), METHODS)
        ],
        f"{_IN_100} (cross-silo, where a round is four times the work: 10).",
    )


def _table2(scale: Scale) -> Study:
    return Study(
        "table2",
        "Rounds to reach 45, 65 and 85 % of the best accuracy",
        _THREE if scale == "full" else _ONE,
        _entries("table2", scale, DEVICE, _columns(scale, _TABLE_1), METHODS),
        f"{_IN_100}.",
    )


def _table3(scale: Scale) -> Study:
    alphas = (0.05, 0.1, 0.2) if scale == "full" else (0.1,)
    base = _setting(scale, DEVICE, "cifar10")
    if scale == "small":
        base = _setting(scale, DEVICE, SMALL).but("num-server-rounds", _ABLATION_ROUNDS)
    rows = {
        "fedavg": (base, "fedavg"),
        "use-anchors=false": (base.but("fedadb.use-anchors", False), "fedadb"),
        "use-lcb=false": (base.but("fedadb.use-lcb", False), "fedadb"),
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
        f"{_ON_PATHMNIST}, {_ABLATION_ROUNDS} rounds instead of 1000; beside the paper's CIFAR-10, "
        f"alpha = 0.1.",
    )


def _table4(scale: Scale) -> Study:
    bases = [_sweep_setting(scale)]
    if scale == "full":
        bases.append(_setting(scale, DEVICE, "cifar100"))
    weights = ("0.1", "0.3", "0.5", "0.7", "0.9")
    return Study(
        "table4",
        "Fixed weights of the LCB against the dynamic one",
        _THREE if scale == "full" else _ONE,
        [
            Entry(
                f"beta={weight}",
                _column(base.dataset, 0.1),
                base if weight == "dynamic" else base.but("fedadb.beta", weight),
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
        f"{_ON_PATHMNIST}, {_SWEEP_ROUNDS} rounds instead of 1000; beside the paper's CIFAR-10.",
    )


def _sweep_setting(scale: Scale) -> Setting:
    if scale == "full":
        return _setting(scale, DEVICE, "cifar10")
    return _setting(scale, DEVICE, SMALL).but("num-server-rounds", _SWEEP_ROUNDS)


def _sweeps(item: str, title: str, scale: Scale, keys: Sequence[str], baseline: bool) -> Study:
    base = _sweep_setting(scale)
    entries = [
        Entry(
            f"{key}={value}",
            strategy,
            base if value == default else base.but(key, value),
            strategy,
            0.1,
            (item, DEVICE, f"{key}={value}", strategy),
        )
        for key in keys
        for default, values in (SWEEPS[key],)
        for value in values
        for strategy in (("fedavg", "fedadb") if baseline else ("fedadb",))
        # FedAvg has no anchors: one point is its line
        if strategy == "fedadb" or not key.startswith("fedadb.") or value == default
    ]
    return Study(
        item,
        title,
        _THREE if scale == "full" else _ONE,
        entries,
        f"{_ON_PATHMNIST}, {_SWEEP_ROUNDS} rounds.",
    )


def _figure2(scale: Scale) -> Study:
    title = "FedADB and FedAvg with other anchors per class, local epochs and learning rates"
    return _sweeps("figure2", title, scale, FIGURE_2, True)


def _figure3(scale: Scale) -> Study:
    title = "FedADB with other steps, step size, L2 weight and start of its anchors"
    return _sweeps("figure3", title, scale, FIGURE_3, False)


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
            f"{_IN_100}; the paper's: {', '.join(dict.fromkeys(DATASETS[d] for d, _ in full))}, "
            f"ResNet-18.",
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
            for entry in _entries("table6", scale, SILO, ((dataset, 0.1),), _FEW)
        ],
        "PathMNIST's 10 004 validation images, each in one of four artificial styles, instead of "
        "PACS, of which the differences say nothing; LeNet, 100 rounds instead of 1000.",
    )


STUDIES: Mapping[str, Callable[[Scale], Study]] = {
    "table1": _table1,
    "table2": _table2,
    "table3": _table3,
    "table4": _table4,
    "table5": _of_methods("table5", "Hessian spectrum and training accuracy", _FEW),
    "table6": _table6,
    "figure2": _figure2,
    "figure3": _figure3,
    "figure4": _of_methods("figure4", "Accuracy over rounds", METHODS, _TABLE_1, _THREE),
    "figure5": _of_methods(
        "figure5", "Accuracy per class over rounds", ("fedavg", "fedlmd", "fedsol", "fedadb")
    ),
    "figure6": _of_methods("figure6", "Loss along the two leading eigenvectors", _FEW),
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
    return replace(study, changed="") if scale == "full" else study
