"""Which runs a comparison consists of."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from fedadb_app.assignments import app_defaults
from fedadb_app.config import Scalar
from fedadb_app.errors import ConfigError
from fedadb_app.flower_run import Simulation
from fedadb_app.run_keys import DataKeys
from strategies.registry import read_run_config

CELL_KEYS = ("strategy", "seed", "alpha", "output-dir", "run-name")
"""Keys that a comparison sets itself."""


_COMPARED = {
    *(name.replace("_", "-") for name in DataKeys.model_fields),
    *("num-server-rounds", "evaluate", "evaluate-every"),
}
"""Keys that no method may have for itself: its runs would answer another question."""


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    strategy: str
    alpha: float
    seed: int

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.strategy}-alpha{self.alpha:g}-seed{self.seed}"

    @property
    def values(self) -> dict[str, Scalar]:
        """Its own part of the run configuration."""
        return {"strategy": self.strategy, "alpha": self.alpha, "seed": self.seed}


@dataclass(frozen=True)
class Grid:
    """A comparison: every method with every alpha and seed, all else equal.

    Attributes
    ----------
    strategies, alphas, seeds : tuple
        What varies.
    values : Mapping[str, Scalar]
        Overrides of the run configuration that all cells share.
    defaults : Mapping[str, Scalar]
        The app's defaults.
    simulation : Simulation
        The federation that all cells share.
    own : Mapping[str, Mapping[str, Scalar]]
        By method: overrides for its cells alone.
    """

    kind: ClassVar[str] = "comparison"
    """What its folder holds; the settings stand in ``<kind>.json``."""

    strategies: tuple[str, ...]
    alphas: tuple[float, ...]
    seeds: tuple[int, ...]
    values: Mapping[str, Scalar]
    defaults: Mapping[str, Scalar]
    simulation: Simulation
    own: Mapping[str, Mapping[str, Scalar]] = field(default_factory=dict)

    def cells(self) -> Iterator[Cell]:
        """Yield the cells, a seed at a time, so that an interrupted comparison is a fair one."""
        for seed in self.seeds:
            for alpha in self.alphas:
                for strategy in self.strategies:
                    yield Cell(strategy, alpha, seed)

    @property
    def effective(self) -> dict[str, Scalar]:
        """The run configuration of all cells, but for what a cell or its method sets itself."""
        return {**self.defaults, **self.values}

    def overrides(self, cell: Cell) -> dict[str, Scalar]:
        """Return what a cell's run configuration has instead of the app's defaults."""
        return {**self.values, **self.own.get(cell.strategy, {}), **cell.values}

    def rounds(self, cell: Cell) -> int:
        """Return how many rounds a cell's run has."""
        return int({**self.defaults, **self.overrides(cell)}["num-server-rounds"])

    def check(self) -> None:
        """Check the configuration of every run.

        Raises
        ------
        ConfigError
            For a value that is not allowed, or if the server would not evaluate.
        """
        for cell in self.cells():
            config, _, _ = read_run_config({**self.defaults, **self.overrides(cell)})
            if not config.server_evaluates:
                raise ConfigError(
                    f'evaluate="{config.evaluate}" leaves the server nothing to compare'
                )

    def shared(self) -> dict[str, Any]:
        """Return what must be equal for two calls to fill one folder, but for `MAY_DIFFER`."""
        shared = {key: value for key, value in self.effective.items() if key not in CELL_KEYS}
        federation = asdict(self.simulation)
        del federation["workers"]  # which change no result
        return {"run-config": shared, "federation": federation}


def checked_grid(
    app: Path,
    values: Mapping[str, Scalar],
    strategies: Sequence[str],
    alphas: Sequence[float],
    seeds: Sequence[int],
    simulation: Simulation,
    own: Mapping[str, Mapping[str, Scalar]] | None = None,
) -> Grid:
    """Return a comparison of which every value has been checked before its first run.

    Parameters
    ----------
    app : Path
        Checkout of the app.
    values : Mapping[str, Scalar]
        Overrides of the run configuration that all runs share.
    strategies, alphas, seeds : Sequence
        What varies; without an alpha, the run configuration's.
    simulation : Simulation
        The federation that all runs share.
    own : Mapping[str, Mapping[str, Scalar]] or None
        By method: overrides for its runs alone.

    Raises
    ------
    ConfigError
        For a value that is not allowed, a key that the comparison sets itself, or values for a
        method that is not compared.
    """
    own = own or {}
    for keys in (values, *own.values()):
        if set_here := [key for key in CELL_KEYS if key in keys]:
            raise ConfigError(
                f"{set_here[0]} is set by the comparison itself: "
                f"use --strategies, --seeds, --alphas and --output"
            )
    for name, values_of_one in own.items():
        if other := [key for key in values_of_one if key in _COMPARED]:
            raise ConfigError(
                f"{name}: {other[0]} must be the same for all methods of a comparison; "
                f"give it without the method's name"
            )
    if unused := [name for name in own if name not in strategies]:
        raise ConfigError(
            f"{unused[0]} has values of its own, but is not among the methods compared: "
            f"{', '.join(strategies)}"
        )
    defaults = app_defaults(app)
    grid = Grid(
        strategies=tuple(strategies),
        alphas=tuple(alphas) or (float(defaults["alpha"]),),
        seeds=tuple(seeds),
        values=values,
        defaults=defaults,
        simulation=simulation,
        own=own,
    )
    grid.check()
    return grid
