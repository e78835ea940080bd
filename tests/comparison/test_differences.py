"""Whether methods differ: the tables hold the tests' numbers, and say what is left out."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import read_csv, write_run
from matplotlib.figure import Figure

from fedadb_app.analysis.critical_difference import draw_critical_difference
from fedadb_app.analysis.significance import Ranking, holm, paired_test
from fedadb_app.comparison.differences import blocks_of, statistics_of, write_significance
from fedadb_app.comparison.grid import Cell
from fedadb_app.comparison.readings import read_run

METHODS = ("fedavg", "fedadb", "feddyn")


def reading(base, strategy, alpha, seed, accuracy):
    cell = Cell(strategy, alpha, seed)
    write_run(base / cell.name, [accuracy - 4, accuracy])
    return read_run(cell, base / cell.name)


def readings_of(base, seeds=3, alphas=(0.1, 0.5)):
    """FedADB is 2, 3, 4, … points above FedAvg, FedDyn 1 below and then 1 above."""
    found = []
    for seed in range(seeds):
        for alpha in alphas:
            gains = {"fedavg": 0, "fedadb": 2 + seed, "feddyn": (-1) ** (seed + 1)}
            found += [reading(base, m, alpha, seed, 50.0 + seed + gains[m]) for m in METHODS]
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """What is written of 18 runs, which no test changes."""
    folder = tmp_path_factory.mktemp("written")
    write_significance(readings_of(folder / "runs"), "fedavg", folder)
    return folder


def test_each_pair_of_methods_is_tested_over_its_seeds(written):
    rows = read_csv(written / "significance.csv")
    assert {row["statistic"] for row in rows} == {"last50", "final", "best5"}
    mine = [r for r in rows if (r["statistic"], r["alpha"]) == ("final", "0.1")]
    assert [r["family"] for r in mine] == ["pairs"] * 3 + ["reference"] * 2
    row = next(r for r in mine if (r["family"], r["method"]) == ("reference", "fedadb"))
    expected = paired_test([2.0, 3.0, 4.0])
    assert (row["against"], row["pairs"]) == ("fedavg", "3")
    assert float(row["mean_difference"]) == 3
    assert float(row["median_difference"]) == 3
    assert float(row["d_z"]) == pytest.approx(expected.effect)
    assert float(row["t_p"]) == pytest.approx(expected.t, rel=1e-5)
    assert float(row["wilcoxon_p"]) == pytest.approx(2 / 8)


@pytest.mark.parametrize(("family", "count"), [("pairs", 3), ("reference", 2)])
def test_the_correction_is_over_one_family_of_one_skew_and_statistic(written, family, count):
    rows = read_csv(written / "significance.csv")
    for alpha in ("0.1", "0.5"):
        own = [
            r for r in rows if (r["statistic"], r["alpha"], r["family"]) == ("final", alpha, family)
        ]
        assert len(own) == count
        for kind in ("t", "wilcoxon"):
            expected = holm([float(r[f"{kind}_p"]) for r in own])
            assert [float(r[f"{kind}_holm"]) for r in own] == pytest.approx(expected, rel=1e-5)


def test_ranks_are_over_all_skews_and_seeds(written):
    """FedADB is first in all six blocks; FedDyn third, second, third, so that FedAvg is 2 1/3."""
    rows = [r for r in read_csv(written / "ranks.csv") if r["statistic"] == "final"]
    ranks = {r["method"]: float(r["mean_rank"]) for r in rows}
    assert ranks == pytest.approx({"fedadb": 1, "fedavg": 7 / 3, "feddyn": 8 / 3}, rel=1e-5)
    assert {(r["blocks"], r["left_out"]) for r in rows} == {("6", "0")}
    for name in ("last50", "final", "best5"):
        assert (written / f"critical-difference-{name}.png").stat().st_size > 1000


def test_the_page_says_it_in_words_and_for_a_paper(written):
    page = (written / "significance.md").read_text()
    assert "## alpha = 0.1, mean of the last 50 rounds" in page
    assert "| FedADB | 3 | +3.00 | +3.00 | 3.00 |" in page
    assert "6 blocks (alpha and seed) have a run of every method." in page
    assert "By the last round: FedADB 1.00, FedAvg 2.33, FedDyn 2.67." in page
    source = (written / "significance.tex").read_text()
    assert source.count(r"\begin{table}") == source.count(r"\end{table}") == 6
    assert r"FedADB & 3 & +3.00" in source


def test_with_a_validation_part_the_chosen_round_is_what_to_go_by(tmp_path):
    """FedADB's chosen round is the first, 4 below its last; FedAvg's is the last."""
    found = []
    for seed in range(3):
        for method, gain, chosen in (("fedavg", 0.0, 2), ("fedadb", 2.0 + seed, 1)):
            one = reading(tmp_path / "runs", method, 0.1, seed, 50.0 + seed + gain)
            found.append(replace(one, chosen=True, reported_round=chosen))
    assert statistics_of(found) == ["reported", "last50", "final", "best5"]
    assert statistics_of([replace(r, chosen=False) for r in found])[0] == "last50"
    write_significance(found, "fedavg", tmp_path)
    rows = [r for r in read_csv(tmp_path / "significance.csv") if r["family"] == "reference"]
    means = {r["statistic"]: float(r["mean_difference"]) for r in rows}
    assert (means["reported"], means["final"]) == (-1.0, 3.0)  # 4 points less than the last round
    page = (tmp_path / "significance.md").read_text()
    assert page.index("alpha = 0.1, round that validation chose") < page.index("last 50 rounds")


def test_a_block_that_lacks_a_method_is_counted_and_left_out(tmp_path):
    readings = readings_of(tmp_path / "runs")[:-1]
    blocks = blocks_of(readings, "final")
    assert (len(blocks.values), blocks.left_out) == (5, 1)
    write_significance(readings, "fedavg", tmp_path)
    said = "5 blocks (alpha and seed) have a run of every method; 1 in which one is missing are"
    assert said in (tmp_path / "significance.md").read_text()


def test_few_blocks_have_tests_but_no_ranks(tmp_path):
    readings = readings_of(tmp_path / "runs", seeds=1)
    write_significance(readings, "fedavg", tmp_path)
    assert read_csv(tmp_path / "ranks.csv") == []
    assert not list(tmp_path.glob("critical-difference-*"))
    page = (tmp_path / "significance.md").read_text()
    assert "Ranks need at least three methods and five such blocks." in page
    assert "| FedADB | 1 | +2.00 | +2.00 | – | – | – | – | – |" in page


def test_without_the_reference_all_pairs_are_tested_all_the_same(tmp_path):
    write_significance(readings_of(tmp_path / "runs"), "fedsol", tmp_path)
    assert {r["family"] for r in read_csv(tmp_path / "significance.csv")} == {"pairs"}


def test_a_diagram_has_each_method_at_its_rank_and_a_bar_over_those_alike():
    axes = Figure().subplots()
    found = Ranking(np.array([2.9, 1.0, 2.1]), 0.01, 1.0, 9)
    draw_critical_difference(axes, ["C", "A", "B"], found, "black", "red")
    words = [text.get_text().strip() for text in axes.texts]
    assert {"A 1.00", "B 2.10", "2.90 C", "1.00 = critical difference"} <= set(words)
    starts = {
        round(float(line.get_xdata()[0]), 2) for line in axes.lines if len(line.get_xdata()) == 3
    }
    assert starts == {1.0, 2.1, 2.9}
    bars = [line.get_xdata() for line in axes.lines if line.get_linewidth() == 3]
    assert [[float(x) for x in bar] for bar in bars] == [pytest.approx([2.06, 2.94])]
