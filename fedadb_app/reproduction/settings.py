"""Section 5.1: the paper's data sets and scenarios, and the run configuration of each pair."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from fedadb_app.config import Scalar
from fedadb_app.data.datasets.styles import STYLED

Scale = Literal["full", "small"]
"""As in the paper, or sized for two cores."""

DEVICE, SILO = "cross-device", "cross-silo"
SCENARIOS = {DEVICE: (100, 0.05), SILO: (20, 0.2)}
"""K and rho."""

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

SMALL = "pathmnist"
"""The data set of the small scale, with LeNet where the paper has ResNet-18."""

_SMALL_ROUNDS = {DEVICE: 100, SILO: 10}


@dataclass(frozen=True)
class Setting:
    """What the runs of one comparison share: all but method, alpha and seed.

    Attributes
    ----------
    scenario : str
        Cross-device or cross-silo.
    base : Mapping[str, Scalar]
        The data set's overrides of the run configuration.
    changes : Mapping[str, Scalar]
        Those of this setting, which go before.
    """

    scenario: str
    base: Mapping[str, Scalar]
    changes: Mapping[str, Scalar]

    @property
    def name(self) -> str:
        """The comparison's folder."""
        changed = [
            f"-{key.rpartition('.')[2]}-{str(value).lower()}" for key, value in self.changes.items()
        ]
        return f"{self.scenario}-{self.dataset}{''.join(changed)}"

    @property
    def values(self) -> Mapping[str, Scalar]:
        """Overrides of the run configuration."""
        return {**self.base, **self.changes}

    @property
    def clients(self) -> int:
        """K."""
        return SCENARIOS[self.scenario][0]

    @property
    def dataset(self) -> str:
        """The data set's name in the run configuration."""
        return str(self.base["dataset"])

    def changed(self, key: str, value: Scalar) -> "Setting":
        """Return the same with one other value."""
        return replace(self, changes={**self.changes, key: value})


def setting_of(scale: Scale, scenario: str, dataset: str) -> Setting:
    """Return section 5.1's configuration; what equals the app's defaults is left out.

    At full scale these are the values of the files in ``configs/``.
    """
    rounds = 300 if dataset == "organamnist" else 1000
    model = "googlenet" if dataset == "pacs" else "auto"
    if scale == "small":
        rounds = 100 if dataset == STYLED else _SMALL_ROUNDS[scenario]  # a tenth of the images
        model = "lenet"
    clients, fraction = SCENARIOS[scenario]
    values: dict[str, Scalar] = {
        "dataset": dataset,
        "model": model,
        "num-server-rounds": rounds,
        "fraction-train": fraction,
        "min-nodes": clients,  # with fewer the run is refused, not made with another K
    }
    if dataset in {"pacs", STYLED}:
        values["partition"] = "domain"
    if dataset in {"svhn", SMALL} and scenario == DEVICE:  # Figures 7 and 8 need early models
        values["snapshot-every"] = rounds // 10
    return Setting(scenario, values, {})
