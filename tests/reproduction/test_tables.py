"""The numbers of the tables, by hand, and how they are written."""

import csv
import locale
import math
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import read_csv, write_run

from fedadb_app.comparison.grid import Cell
from fedadb_app.comparison.readings import read_run
from fedadb_app.reproduction.catalogue import study_of
from fedadb_app.reproduction.tables import (
    Number,
    Result,
    accuracies,
    as_markdown,
    rounds_to_targets,
    title_of,
    write_csv,
    write_page,
)


@pytest.fixture
def result(tmp_path):
    """Make an entry's result: `result(entry, [accuracies of seed 0], [of seed 1])`."""

    def make(entry, *curves):
        cells = [Cell(entry.strategy, entry.alpha, seed) for seed in range(len(curves))]
        folders = [tmp_path / entry.setting.name / cell.name for cell in cells]
        for folder, curve in zip(folders, curves, strict=True):
            write_run(folder, curve)
        readings = [read_run(*run) for run in zip(cells, folders, strict=True)]
        return Result(entry, readings, folders)

    return make


def entry_of(item, row, scale="small", column=None):
    study = study_of(item, scale)
    return next(e for e in study.entries if e.row == row and column in (None, e.column))


# --- one number -----------------------------------------------------------------------------


def test_mean_deviation_and_difference(result):
    # best five of six: 20 30 40 50 60 -> 40; of the second: 44; of the third: 45
    entry = entry_of("table3", "use-lcb=false")
    (number,) = accuracies(
        [
            result(
                entry,
                [10.0, 20.0, 30.0, 40.0, 50.0, 60.0],
                [44.0] * 6,
                [45.0, 45.0, 45.0, 45.0, 45.0, 1.0],
            )
        ],
        seeds=3,
    )
    assert number.values == [40.0, 44.0, 45.0]
    assert number.mean == 43.0
    assert number.deviation == pytest.approx(math.sqrt((9 + 1 + 4) / 2))
    assert (number.row, number.column) == ("use-lcb=false", "pathmnist 0.1")
    assert (number.paper, number.paper_deviation) == (50.22, None)
    assert number.shown == "43.00 ± 2.65 (50.22, -7.22)"


def test_the_papers_deviation_goes_along(result):
    (number,) = accuracies([result(entry_of("table1", "fedadb"), [79.58] * 3)], seeds=1)
    assert (number.paper, number.paper_deviation) == (79.08, 0.53)
    assert number.shown == "79.58 (79.08, +0.50)"  # one seed has no spread


def test_missing_seeds_are_named(result):
    (number,) = accuracies([result(entry_of("table1", "fedadb"), [79.58] * 3)], seeds=3)
    assert number.shown == "79.58 [1 of 3 seeds] (79.08, +0.50)"


@pytest.mark.parametrize(
    ("values", "paper", "decimals", "shown"),
    [
        ([], None, 2, "–"),
        ([], 48.76, 2, "– (48.76)"),
        ([50.0], None, 2, "50.00"),
        ([274], 274.0, 0, "274 (274, +0)"),
        ([274], math.nan, 0, "274 (–)"),
        ([], math.nan, 0, "– (–)"),
        ([math.inf], 2.41, 2, "∞ (2.41)"),
        ([math.inf], None, 2, "∞"),
        ([math.nan], 2.41, 2, "– (2.41)"),
        ([math.nan], None, 2, "–"),
        ([1.0, math.nan], None, 2, "–"),
        ([1.0, math.inf], None, 2, "∞"),
    ],
)
def test_a_number_is_shown(values, paper, decimals, shown):
    assert Number("row", "column", values, paper, decimals=decimals).shown == shown


def test_one_seed_and_none():
    assert math.isnan(Number("r", "c", [3.0], None).deviation)
    assert math.isnan(Number("r", "c", [], None).mean)
    assert accuracies([], seeds=3) == []
    assert as_markdown([]) == ["| |  |", "|---|"]


# --- rounds to a target ---------------------------------------------------------------------


def test_rounds_to_targets_by_hand(result):
    fedadb = result(entry_of("table2", "fedadb"), [40.0, 80.0, 80.0], [60.0, 80.0, 80.0])
    fedavg = result(entry_of("table2", "fedavg"), [10.0, 40.0, 40.0])
    nothing = Result(entry_of("table2", "fedsol"), [], [])
    (column, numbers), *others = rounds_to_targets([fedadb, fedavg, nothing]).items()
    assert (column, others) == ("pathmnist 0.1", [])
    found = {(n.row, n.column): (list(n.values), n.paper) for n in numbers}
    # FedADB's mean curve 50 80 80, smoothed 50 56 60.8; FedAvg's smoothed 10 16 20.8.
    # Targets: 45, 65, 85 % of 80 = 36, 52, 68; the paper's own on PathMNIST are 36, 52, 68 too.
    assert found == {
        ("fedadb", "36.0 %"): ([1], None),
        ("fedadb", "52.0 %"): ([2], None),
        ("fedadb", "68.0 %"): ([], None),
        ("fedadb", "paper's 36 %"): ([1], 11.0),
        ("fedadb", "paper's 52 %"): ([2], 26.0),
        ("fedadb", "paper's 68 %"): ([], 76.0),
        ("fedavg", "36.0 %"): ([], None),
        ("fedavg", "52.0 %"): ([], None),
        ("fedavg", "68.0 %"): ([], None),
        ("fedavg", "paper's 36 %"): ([], 96.0),
        ("fedavg", "paper's 52 %"): ([], 155.0),
        ("fedavg", "paper's 68 %"): ([], pytest.approx(math.nan, nan_ok=True)),  # never
    }
    shown = {(n.row, n.column): n.shown for n in numbers}
    assert shown["fedadb", "paper's 52 %"] == "2 (26, -24)"
    assert shown["fedavg", "paper's 36 %"] == "– (96)"
    assert shown["fedavg", "paper's 68 %"] == "– (–)"
    assert shown["fedavg", "36.0 %"] == "–"


def test_each_data_set_has_its_own_targets(result):
    one = result(entry_of("table2", "fedadb", "full", "svhn 0.1"), [90.0])
    other = result(entry_of("table2", "fedadb", "full", "cifar10 0.05"), [20.0])
    found = rounds_to_targets([one, other])
    assert list(found) == ["svhn 0.1", "cifar10 0.05"]
    columns = {name: [n.column for n in numbers] for name, numbers in found.items()}
    assert columns["svhn 0.1"] == [
        *("40.5 %", "58.5 %", "76.5 %"),
        *("paper's 42 %", "paper's 61 %", "paper's 80 %"),
    ]
    assert columns["cifar10 0.05"][3:] == ["paper's 25 %", "paper's 35 %", "paper's 46 %"]


def test_no_run_no_targets():
    nothing = [Result(e, [], []) for e in study_of("table2", "small").entries]
    assert rounds_to_targets(nothing) == {}


# --- labels ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "title"),
    [
        ("fedadb", "FedADB"),
        ("feddecorr", "FedDecorr"),
        ("cifar10 0.05", "CIFAR-10, α = 0.05"),
        ("pacs", "PACS"),
        ("use-lcb=false", "use-lcb=false"),
        ("beta=dynamic", "beta=dynamic"),
        ("fedadb.anchor-l2=0.0", "fedadb.anchor-l2=0.0"),
        ("cifar 0.1", "cifar 0.1"),
        ("paper's 36 %", "paper's 36 %"),
        ("36.0 %", "36.0 %"),
        ("lambda1/lambda5", "lambda1/lambda5"),
        ("round 100", "round 100"),
        ("", ""),
        (" ", " "),
    ],
)
def test_titles(label, title):
    assert title_of(label) == title


def test_every_label_has_a_title():
    for scale in ("full", "small"):
        for entry in study_of("table1", scale).entries:
            assert title_of(entry.row).startswith("Fed")
            assert "α = 0." in title_of(entry.column)


# --- written --------------------------------------------------------------------------------


def test_markdown_and_csv(tmp_path):
    numbers = [
        Number("fedavg", "svhn 0.1", [80.0, 82.0], 84.56, 1.57),
        Number("fedadb", "svhn 0.1", [], 90.06, 0.40),
        Number("fedadb", "cinic10 0.1", [50.123], None),
    ]
    assert as_markdown(numbers) == [
        "| | SVHN, α = 0.1 | CINIC-10, α = 0.1 |",
        "|---|---|---|",
        "| FedAvg | 81.00 ± 1.41 (84.56, -3.56) |  |",
        "| FedADB | – (90.06) | 50.12 |",
    ]
    spectrum = [Number("lambda1/lambda5", "fedavg", [math.inf], 2.41)]
    write_csv(tmp_path / "t.csv", {"cross-device": numbers, "": spectrum})
    columns = ("row", "column", "runs", "ours", "deviation", "paper", "difference")
    rows = [tuple(row[c] for c in columns) for row in read_csv(tmp_path / "t.csv")]
    assert rows == [
        ("fedavg", "svhn 0.1", "2", "81.00", "1.41", "84.56", "-3.56"),
        ("fedadb", "svhn 0.1", "0", "", "", "90.06", ""),
        ("fedadb", "cinic10 0.1", "1", "50.12", "", "", ""),
        ("lambda1/lambda5", "fedavg", "1", "inf", "", "2.41", "inf"),
    ]
    sections = [row["section"] for row in read_csv(tmp_path / "t.csv")]
    assert sections == ["cross-device"] * 3 + [""]
    assert [row["paper_deviation"] for row in read_csv(tmp_path / "t.csv")][:2] == ["1.57", "0.40"]


def test_a_table_of_numbers_is_utf_8_everywhere(tmp_path):
    """Where text has another encoding by default, an "α" would end the command."""
    before = locale.setlocale(locale.LC_CTYPE)
    locale.setlocale(locale.LC_CTYPE, "C")
    try:
        with pytest.raises(UnicodeEncodeError):
            (tmp_path / "by-default").write_text("α")
        write_csv(tmp_path / "t.csv", {"": [Number("α", "c", [1.0], None)]})
    finally:
        locale.setlocale(locale.LC_CTYPE, before)
    assert ",α,c," in (tmp_path / "t.csv").read_text(encoding="utf-8")


def test_a_page(tmp_path):
    study = study_of("table1", "small")
    sections = {"cross-device": [Number("fedavg", "svhn 0.1", [80.0], 84.56)]}
    write_page(tmp_path / "p.md", study, sections, "Explained.", [Path("/x/a.png")])
    text = (tmp_path / "p.md").read_text(encoding="utf-8")
    assert text.startswith("# Table 1: Test accuracy of all methods")
    assert f"Otherwise than in the paper: {study.differences}" in text
    assert "Explained. Seeds: 0." in text
    assert "## cross-device\n\n| | SVHN, α = 0.1 |" in text
    assert f"![{study.title}](a.png)" in text
    full = replace(study_of("figure7", "full"), seeds=(3, 4))
    write_page(tmp_path / "p.md", full, {}, "Explained.")
    text = (tmp_path / "p.md").read_text(encoding="utf-8")
    assert "Otherwise" not in text
    assert "Seeds: 3, 4." in text
    assert "|" not in text


def test_an_empty_study_is_a_header(tmp_path):
    write_csv(tmp_path / "t.csv", {})
    with (tmp_path / "t.csv").open() as file:
        assert len(list(csv.reader(file))) == 1
