"""Which runs a comparison consists of."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedadb_app.assignments import app_defaults
from fedadb_app.config import Scalar
from fedadb_app.errors import ConfigError
from fedadb_app.flower_run import Simulation
from strategies.registry import read_run_config

CELL_KEYS = ("strategy", "seed", "alpha", "output-dir", "run-name")
"""Keys that a comparison sets itself."""


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
    """

    strategies: tuple[str, ...]
    alphas: tuple[float, ...]
    seeds: tuple[int, ...]
    values: Mapping[str, Scalar]
    defaults: Mapping[str, Scalar]
    simulation: Simulation

    def cells(self) -> Iterator[Cell]:
        """Yield the cells, a seed at a time, so that an interrupted comparison is a fair one."""
        for seed in self.seeds:
            for alpha in self.alphas:
                for strategy in self.strategies:
                    yield Cell(strategy, alpha, seed)

    @property
    def effective(self) -> dict[str, Scalar]:
        """The run configuration of all cells, but for what a cell sets itself."""
        return {**self.defaults, **self.values}

    def check(self) -> None:
        """Check the configuration of every run.

        Raises
        ------
        ConfigError
            For a value that is not allowed, or if the server would not evaluate.
        """
        for cell in self.cells():
            config, _, _ = read_run_config({**self.effective, **cell.values})
            if not config.server_evaluates:
                raise ConfigError(
                    f'evaluate="{config.evaluate}" leaves the server nothing to compare'
                )

    def shared(self) -> dict[str, Any]:
        """Return what must be equal for two calls to fill one folder, but for `MAY_DIFFER`."""
        shared = {key: value for key, value in self.effective.items() if key not in CELL_KEYS}
        return {"run-config": shared, "federation": asdict(self.simulation)}


def checked_grid(
    app: Path,
    values: Mapping[str, Scalar],
    strategies: Sequence[str],
    alphas: Sequence[float],
    seeds: Sequence[int],
    simulation: Simulation,
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

    Raises
    ------
    ConfigError
        For a value that is not allowed, or a key that the comparison sets itself.
    """
    if own := [key for key in CELL_KEYS if key in values]:
        raise ConfigError(
            f"{own[0]} is set by the comparison itself: "
            f"use --strategies, --seeds, --alphas and --output"
        )
    defaults = app_defaults(app)
    grid = Grid(
        strategies=tuple(strategies),
        alphas=tuple(alphas) or (float(defaults["alpha"]),),
        seeds=tuple(seeds),
        values=values,
        defaults=defaults,
        simulation=simulation,
    )
    grid.check()
    return grid
