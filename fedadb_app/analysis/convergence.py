"""Convergence speed and forgetting, from accuracies per round (paper, sections 5.3 and 6)."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

Curve = tuple[tuple[int, ...], list[float]]
"""Evaluated rounds, and the accuracy in each, percent."""

SMOOTHING = 0.2
"""Factor of the exponentially weighted moving average (section 5.3)."""

TARGETS = (0.45, 0.65, 0.85)
"""Targets as shares of the best accuracy over all compared methods (section 5.3)."""


def smooth(accuracies: Sequence[float]) -> list[float]:
    """Return s_t = 0.2 a_t + 0.8 s_(t-1), starting at s_1 = a_1."""
    smoothed: list[float] = []
    for accuracy in accuracies:
        before = smoothed[-1] if smoothed else accuracy
        smoothed.append(SMOOTHING * accuracy + (1 - SMOOTHING) * before)
    return smoothed


def rounds_to(target: float, rounds: Sequence[int], accuracies: Sequence[float]) -> int | None:
    """Return the first round whose smoothed accuracy reaches `target` percent, or None."""
    for number, accuracy in zip(rounds, smooth(accuracies), strict=True):
        if accuracy >= target:
            return number
    return None


def targets_of(curves: Iterable[Curve]) -> list[float]:
    """Return 45, 65 and 85 % of the highest accuracy on any of the curves (section 5.3)."""
    top = max(max(accuracies) for _, accuracies in curves)
    return [share * top for share in TARGETS]


def rounds_to_targets(
    curves: Mapping[str, Curve], targets: Sequence[float]
) -> dict[str, list[int | None]]:
    """Return Table 2: per curve, the first round in which it reaches each target, as `rounds_to`.

    Parameters
    ----------
    curves : Mapping[str, Curve]
        Of each method, the mean over seeds.
    targets : Sequence[float]
        Percent.
    """
    return {
        name: [rounds_to(target, *curve) for target in targets] for name, curve in curves.items()
    }


def forgetting(class_accuracy: npt.NDArray[np.float64]) -> float:
    """Return the mean drop of per-class accuracy from its running best.

    Parameters
    ----------
    class_accuracy : numpy.ndarray
        Percent, ``(rounds, C)``; classes without a test sample are not a number and do not count.

    Returns
    -------
    float
        Percentage points, averaged over rounds and classes; 0 if no class ever falls.
    """
    drop = np.maximum.accumulate(class_accuracy, axis=0) - class_accuracy
    return float(np.nanmean(drop))
