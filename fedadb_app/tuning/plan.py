"""What a tuning consists of: as many trials of each method, each of at most as many rounds."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedadb_app.assignments import app_defaults
from fedadb_app.comparison.grid import Cell, Grid, checked_grid
from fedadb_app.config import Scalar
from fedadb_app.errors import ConfigError
from fedadb_app.flower_run import Simulation
from strategies.registry import REFERENCES, STRATEGIES
from strategies.tunable import LEARNING_RATE, Space

BATCH = 4
"""Trials of a method that are suggested together, from what those before them have found.

So many of one method run side by side; which of them ends first changes nothing.
"""


@dataclass(frozen=True)
class Trial(Cell):
    """One run of a tuning.

    Attributes
    ----------
    number : int
        Which of its method's, from 0.
    own : tuple[tuple[str, Scalar], ...]
        The values it tries, and ``must-reach`` where it may be ended early.
    """

    number: int = 0
    own: tuple[tuple[str, Scalar], ...] = ()

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.strategy}-trial{self.number:03}"

    @property
    def values(self) -> dict[str, Scalar]:
        """Its own part of the run configuration."""
        return {**super().values, **dict(self.own)}


@dataclass(frozen=True)
class Tuning(Grid):
    """A tuning, or some of its runs.

    Attributes
    ----------
    trials : int
        Of each method.
    rungs : tuple[int, ...]
        Rounds after which a trial ends that is worse than the median of those before its batch.
    runs : tuple[Trial, ...]
        The trials that are to be run; those of later batches are not known yet.
    """

    kind: ClassVar[str] = "tuning"

    trials: int = 0
    rungs: tuple[int, ...] = ()
    runs: tuple[Trial, ...] = ()

    def cells(self) -> Iterator[Trial]:
        """Yield the trials that are to be run."""
        yield from self.runs

    def trial(self, method: str, number: int, own: Mapping[str, Scalar] | None = None) -> Trial:
        """Return a trial; all have one alpha and one seed."""
        return Trial(method, self.alphas[0], self.seeds[0], number, tuple((own or {}).items()))

    def default(self, method: str) -> dict[str, Scalar]:
        """Return what trial 0 tries: the values that the method has if nobody tunes it."""
        return {key: self.effective[key] for key in space_of(method)}

    @property
    def metric(self) -> str:
        """What is made as good as possible, on the validation part."""
        return str(self.effective["select-by"]).removeprefix("val-")

    def shared(self) -> dict[str, Any]:
        """Return what must be equal for two calls to fill one folder."""
        search = {
            "trials": self.trials,
            "rungs": list(self.rungs),
            "alpha": self.alphas[0],
            "seed": self.seeds[0],
        }
        return {**super().shared(), "search": search}


def space_of(method: str) -> Space:
    """Return what may be chosen of a method, keys as a run configuration has them."""
    own = STRATEGIES[method].tunable
    return {"learning-rate": LEARNING_RATE, **{f"{method}.{key}": own[key] for key in own}}


def checked_tuning(
    app: Path,
    values: Mapping[str, Scalar],
    strategies: Sequence[str],
    alpha: float | None,
    seed: int,
    simulation: Simulation,
    trials: int,
    rungs: Sequence[int] | None,
) -> Tuning:
    """Return a tuning of which every value has been checked before its first run.

    Parameters
    ----------
    app : Path
        Checkout of the app.
    values : Mapping[str, Scalar]
        Overrides of the run configuration that all runs share; without ``select-by`` it is
        ``val-accuracy``.
    strategies : Sequence[str]
        Methods.
    alpha : float or None
        Of all runs; None = the run configuration's.
    seed : int
        Of all runs, and of what is tried.
    simulation : Simulation
        The federation that all runs share.
    trials : int
        Of each method.
    rungs : Sequence[int] or None
        Rounds after which trials may end early; None = a quarter and half of the rounds.

    Raises
    ------
    ConfigError
        For a value that is not allowed, a run without a validation part, or rungs that are no
        rounds before the last one.
    """
    if "must-reach" in values:
        raise ConfigError("must-reach is set by the tuning itself: use --rungs")
    if alone := [name for name in strategies if name in REFERENCES]:
        raise ConfigError(
            f"{alone[0]} is a reference and no method; --strategies takes methods to be tuned"
        )
    shared = dict(values)
    effective = {**app_defaults(app), **values}
    if not effective["select-by"]:
        shared["select-by"] = "val-accuracy"
    if effective["validation"] == "merged":
        raise ConfigError(
            "values are chosen on validation images alone, and these runs have none: set "
            'validation="official" or a fraction, as in -c \'validation="0.1"\''
        )
    alphas = () if alpha is None else (alpha,)
    grid = checked_grid(app, shared, strategies, alphas, (seed,), simulation)
    rounds = grid.rounds(next(iter(grid.cells())))
    if rungs is None:
        rungs = sorted({math.ceil(rounds / 4), math.ceil(rounds / 2)} - {rounds})
    if any(not 1 <= rung < rounds for rung in rungs) or list(rungs) != sorted(rungs):
        shown = ",".join(map(str, rungs))
        raise ConfigError(
            f"--rungs {shown}: expected rising rounds from 1 to {rounds - 1}, before the last one"
        )
    return Tuning(**vars(grid), trials=trials, rungs=tuple(rungs))
