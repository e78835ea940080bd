"""Whether methods differ: paired tests over seeds, ranks over many blocks, two models' images."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]

LEAST_BLOCKS = 5
"""With fewer, ranks can hardly differ by chance less often than once in twenty."""

LEVEL = 0.05


@dataclass(frozen=True)
class PairedTest:
    """What paired differences say.

    Attributes
    ----------
    pairs : int
        How many.
    mean, median : float
        Of the differences.
    effect : float
        Cohen's d_z: their mean over their sample standard deviation; infinite where they are all
        the same, NaN below two pairs or if all are 0.
    t, wilcoxon : float
        Two-sided p-values of Student's paired t-test and of Wilcoxon's signed-rank test; NaN below
        two pairs, 1 if all differences are 0.
    """

    pairs: int
    mean: float
    median: float
    effect: float
    t: float
    wilcoxon: float


def paired_test(differences: Sequence[float]) -> PairedTest:
    """Test whether paired differences, at least one, centre at 0.

    With n pairs the p-value of Wilcoxon's test is at least 2 / 2^n: 0.0625 with five seeds.
    """
    d = np.asarray(differences, np.float64)
    mean, median = float(d.mean()), float(np.median(d))
    if len(d) < 2:
        return PairedTest(len(d), mean, median, np.nan, np.nan, np.nan)
    if not d.any():
        return PairedTest(len(d), 0.0, 0.0, np.nan, 1.0, 1.0)
    wilcoxon = float(stats.wilcoxon(d).pvalue)
    if (d == d[0]).all():  # no spread at all: scipy would warn and divide by rounding errors
        return PairedTest(len(d), mean, median, float(np.copysign(np.inf, mean)), 0.0, wilcoxon)
    t = float(stats.ttest_1samp(d, 0).pvalue)
    return PairedTest(len(d), mean, median, float(mean / d.std(ddof=1)), t, wilcoxon)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm, 1979), in the same order.

    One that is not a number stays so, and does not count.
    """
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p)[: np.count_nonzero(~np.isnan(p))]
    corrected = np.full(len(p), np.nan)
    steps = p[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return corrected.tolist()


@dataclass(frozen=True)
class Ranking:
    """Methods by their mean rank over blocks.

    Attributes
    ----------
    mean_ranks : numpy.ndarray
        1 is best, float64 ``(k,)``.
    p_value : float
        Of the Friedman test: how often ranks lie as far apart if all methods are alike.
    critical_difference : float
        Mean ranks that lie at least this far apart differ at level 0.05 (Nemenyi's test).
    blocks : int
        How many.
    """

    mean_ranks: Floats
    p_value: float
    critical_difference: float
    blocks: int

    def groups(self) -> list[tuple[int, ...]]:
        """Return the largest sets of methods, two or more, none of which differs from another.

        As positions in `mean_ranks`, best first.
        """
        order = np.argsort(self.mean_ranks, kind="stable")
        ranks = self.mean_ranks[order]
        found: list[tuple[int, ...]] = []
        reached = 0
        for first in range(len(ranks)):
            end = int(np.searchsorted(ranks, ranks[first] + self.critical_difference, "left"))
            if end > max(reached, first + 1):
                found.append(tuple(order[first:end].tolist()))
                reached = end
        return found


def ranking(values: Floats) -> Ranking | None:
    """Rank methods over blocks; None below three methods or `LEAST_BLOCKS` blocks.

    Friedman's test and Nemenyi's critical difference, as Demšar sets them out (Statistical
    Comparisons of Classifiers over Multiple Data Sets, JMLR 7, 2006, section 3.2.2).

    Parameters
    ----------
    values : numpy.ndarray
        Larger is better, float64 ``(blocks, k)``; equal values share their mean rank.
    """
    blocks, count = values.shape
    if count < 3 or blocks < LEAST_BLOCKS:
        return None
    ranks = stats.rankdata(-values, axis=1)
    alike = bool((ranks == ranks[0, 0]).all())  # then Friedman's statistic is 0 / 0
    p_value = 1.0 if alike else float(stats.friedmanchisquare(*values.T).pvalue)
    q = stats.studentized_range.ppf(1 - LEVEL, count, np.inf) / np.sqrt(2)
    difference = float(q * np.sqrt(count * (count + 1) / (6 * blocks)))
    return Ranking(ranks.mean(axis=0), p_value, difference, blocks)


@dataclass(frozen=True)
class McNemar:
    """Where two models on the same images differ.

    Attributes
    ----------
    only_first, only_second : int
        Images that only the one, or only the other, classifies correctly.
    p_value : float
        Exact and two-sided (McNemar, 1947): how often a fair coin divides them so unevenly.
    """

    only_first: int
    only_second: int
    p_value: float


def mcnemar(first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_]) -> McNemar:
    """Compare which images two models classify correctly, bool ``(N,)`` each.

    It takes the images for independent, which several of one patient are not.
    """
    b, c = int((first & ~second).sum()), int((second & ~first).sum())
    p_value = float(stats.binomtest(b, b + c).pvalue) if b + c else 1.0
    return McNemar(b, c, p_value)
