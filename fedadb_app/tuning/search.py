"""What a method's trials try: Optuna's suggestions, and the median rule that ends trials early.

Both are functions of the tuning's seed and of what the batches before have found, so that a tuning
that was interrupted goes on as if it had not been, whichever of its runs ended first.
"""

import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING

from fedadb_app.config import Scalar
from fedadb_app.errors import ConfigError
from fedadb_app.metrics import BETTER
from fedadb_app.randomness import numpy_generator
from fedadb_app.tuning.plan import BATCH, Trial, Tuning, space_of
from strategies.tunable import OneOf, Space

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


@dataclass(frozen=True)
class Tried:
    """A trial that has ended.

    Attributes
    ----------
    trial : Trial
        Which.
    values : Mapping[str, Scalar]
        What it tried.
    best : Mapping[int, float]
        Evaluated round -> the metric's best value so far, on the validation part; empty for a
        trial that has failed.
    ended_early : bool
        Whether the median rule has ended it.
    reason : str
        Why it has failed.
    """

    trial: Trial
    values: Mapping[str, Scalar]
    best: Mapping[int, float] = field(default_factory=dict)
    ended_early: bool = False
    reason: str = ""

    @property
    def value(self) -> float:
        """The metric's best value in all its rounds."""
        return self.best[max(self.best)]

    def best_by(self, rung: int) -> float | None:
        """Return the best value up to a rung, looked at in the first evaluated round from there."""
        reached = [number for number in self.best if number >= rung]
        return self.best[min(reached)] if reached else None


def needed_optuna() -> ModuleType:
    """Return Optuna.

    Raises
    ------
    ConfigError
        If this machine lacks it.
    """
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(
            'tune needs Optuna, which this machine lacks: pip install "fedadb-app[tune]"'
        ) from error
    module: ModuleType = optuna
    return module


def next_batch(tuning: Tuning, method: str, tried: Sequence[Tried]) -> list[Trial]:
    """Return the next trials of a method.

    A trial of a later batch must reach, at each rung, the median of all trials before it.

    Parameters
    ----------
    tuning : Tuning
        For the seed, the metric and the rungs.
    method : str
        Of the registry.
    tried : Sequence[Tried]
        All its trials so far, in their order.
    """
    begin = len(tried)
    count = min(BATCH, tuning.trials - begin)
    asked = _suggested(tuning, method, tried, count)
    if not begin:  # so that no method ends with values that are worse than its published ones
        asked = [tuning.default(method), *asked[1:]]
    ends = must_reach(tuning, tried)
    also: dict[str, Scalar] = {"must-reach": ends} if ends else {}
    return [
        tuning.trial(method, begin + offset, {**values, **also})
        for offset, values in enumerate(asked)
    ]


def must_reach(tuning: Tuning, tried: Sequence[Tried]) -> str:
    """Return ``must-reach`` of a batch: at each rung the median of the trials before it."""
    words = []
    for rung in tuning.rungs:
        known = [value for t in tried if (value := t.best_by(rung)) is not None]
        if known:
            text = f"{statistics.median(known):.6f}".rstrip("0").rstrip(".")
            words.append(f"{rung}:{text}")
    return ",".join(words)


def chosen(tuning: Tuning, tried: Sequence[Tried]) -> Tried | None:
    """Return the best trial that has run to its end, of equal ones the first; None without one."""
    whole = [t for t in tried if t.best and not t.ended_early]
    return max(whole, key=lambda t: BETTER[tuning.metric] * t.value, default=None)


def _suggested(
    tuning: Tuning, method: str, tried: Sequence[Tried], count: int
) -> list[dict[str, Scalar]]:
    """Return what Optuna's TPE sampler suggests, floats to three significant digits.

    The first batch is drawn at random from the method's space.
    """
    optuna = needed_optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # the stream is the method's: what it tries does not depend on which others are tuned
    draw = numpy_generator(tuning.seeds[0], f"tune {method}", len(tried))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=int(draw.integers(2**32)),
            n_startup_trials=BATCH,
            constant_liar=True,  # of one batch no two try the same region
        )
    direction = "maximize" if BETTER[tuning.metric] > 0 else "minimize"
    study = optuna.create_study(sampler=sampler, direction=direction)
    space = space_of(method)
    within = _distributions(optuna, space)
    for t in tried:
        if all(t.values[key] in space[key] for key in space):  # a user's own defaults may not be
            study.add_trial(_as_optuna(optuna, t, within))
    return [
        {key: _rounded(value) for key, value in study.ask(within).params.items()}
        for _ in range(count)
    ]


def _distributions(optuna: ModuleType, space: Space) -> dict[str, "BaseDistribution"]:
    kinds = optuna.distributions
    return {
        key: kinds.CategoricalDistribution(of.values)
        if isinstance(of, OneOf)
        else kinds.FloatDistribution(of.low, of.high, log=of.log)
        for key, of in space.items()
    }


def _as_optuna(
    optuna: ModuleType, t: Tried, within: Mapping[str, "BaseDistribution"]
) -> "FrozenTrial":
    """Return a trial as Optuna knows it: one that has failed as pruned before all others."""
    whole = bool(t.best) and not t.ended_early
    states = optuna.trial.TrialState
    trial: FrozenTrial = optuna.trial.create_trial(
        state=states.COMPLETE if whole else states.PRUNED,
        value=t.value if whole else None,
        params={key: t.values[key] for key in within},
        distributions=dict(within),
        intermediate_values={max(t.best): t.value} if t.ended_early else {},
    )
    return trial


def _rounded(value: Scalar) -> Scalar:
    return float(f"{value:.3g}") if isinstance(value, float) else value
