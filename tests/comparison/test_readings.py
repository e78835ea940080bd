"""What a complete run says, and the numbers in a comparison's tables."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from helpers import write_run

from fedadb_app.comparison.grid import Cell
from fedadb_app.comparison.readings import mean_curve, read_run
from fedadb_app.comparison.tables import mean_and_std, paired_interval, write_csv, write_markdown
from fedadb_app.errors import DataError
from fedadb_app.runs.reader import read_files

# --- numbers --------------------------------------------------------------------------------


def test_mean_and_sample_deviation():
    assert mean_and_std([1.0, 2.0, 3.0, 6.0]) == "3.00 ± 2.16"
    assert mean_and_std([4.0]) == "4.00"


def test_paired_interval_is_students():
    # differences 1, 2, 3: mean 2, s = 1, t(0.975; 2) = 4.3027
    low, high = paired_interval([1.0, 2.0, 3.0])
    half = 4.302652729911275 / np.sqrt(3)
    assert (low, high) == pytest.approx((2 - half, 2 + half))
    assert paired_interval([1.0]) is None


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


DAMAGES = {
    "rounds.csv without its last round": lambda p: edit(p, p.read_text().splitlines(True)[-1], ""),
    "rounds.csv without a round in between": lambda p: edit(
        p, p.read_text().splitlines(True)[2], ""
    ),
    "rounds.csv without a line end": lambda p: p.write_text(p.read_text()[:-1]),
    "rounds.csv cut in its last cell": lambda p: p.write_text(p.read_text()[:-3]),
    "rounds.csv with a word": lambda p: edit(p, "2,20.00", "2,abc"),
    "rounds.csv with nan": lambda p: edit(p, "2,20.00", "2,nan"),
    "rounds.csv with inf": lambda p: edit(p, "2,20.00", "2,inf"),
    "rounds.csv without an accuracy": lambda p: edit(p, "3,30.00", "3,"),
    "rounds.csv without a number of clients": lambda p: edit(p, ",2,1,3000000", ",,1,3000000"),
    "rounds.csv without seconds": lambda p: edit(p, "seconds_train", "minutes_train"),
    "rounds.csv twice the same round": lambda p: edit(p, "3,30.00", "2,30.00"),
    "rounds.csv a cell more": lambda p: edit(p, "2,20.00", "2,20.00,1"),
    "rounds.csv no text": lambda p: p.write_bytes(b"\xff\xfe"),
    "class_accuracy.csv without its last round": lambda p: edit(p, "3,100.00,0.00\n", ""),
    "class_accuracy.csv header only": lambda p: p.write_text("round,a,b\n"),
    "class_accuracy.csv out of order": lambda p: edit(p, "3,100.00", "1,100.00"),
    "class_accuracy.csv with a word": lambda p: edit(p, "2,100.00", "2,abc"),
    "class_accuracy.csv not there": lambda p: p.unlink(),
    "rounds.csv unlike the summary": lambda p: edit(
        p.with_name("summary.json"), '"best5_accuracy": 20.0', '"best5_accuracy": null'
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_does_not_count_whatever_its_summary_says(tmp_path, damage):
    """One sentence names the file; a run that lacks rounds would change every mean and target."""
    folder = tmp_path / "fedavg-alpha0.1-seed0"
    write_run(folder, [10.0, 20.0, 30.0])
    cell = Cell("fedavg", 0.1, 0)
    read_run(cell, folder)
    name = damage.split()[0]
    DAMAGES[damage](folder / name)
    with pytest.raises(DataError, match=rf"{name} .*remove {folder}, and it is run again") as found:
        read_run(cell, folder)
    assert "\n" not in str(found.value)


def test_runs_that_were_not_evaluated_in_the_same_rounds_have_no_mean(tmp_path):
    readings = []
    for seed, rounds in enumerate((3, 2)):
        cell = Cell("fedavg", 0.1, seed)
        write_run(tmp_path / cell.name, [10.0] * rounds)
        readings.append(read_run(cell, tmp_path / cell.name))
    with pytest.raises(DataError, match=r"fedavg-alpha0.1-seed0 .* 3 times, .*seed1 2 times"):
        mean_curve(readings)


def test_the_table_is_replaced_at_once(monkeypatch, tmp_path):
    """A crash at any instant leaves the old one or the new one."""
    write_run(tmp_path / "run", [10.0, 20.0])
    readings = [read_run(Cell("fedavg", 0.1, seed), tmp_path / "run") for seed in (0, 1)]
    path = tmp_path / "comparison.csv"
    write_csv(readings[:1], path)
    before = path.read_text()

    def crash(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(path), "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        write_csv(readings, path)
    assert path.read_text() == before


def test_readings_and_tables(tmp_path):
    curves = {
        ("fedavg", 0): [10.0, 10.0, 20.0],
        ("fedavg", 1): [20.0, 10.0, 20.0],
        ("fedadb", 0): [50.0, 60.0, 70.0],
        ("fedadb", 1): [40.0, 60.0, 90.0],
    }
    readings = []
    for (name, seed), accuracies in curves.items():
        cell = Cell(name, 0.1, seed)
        write_run(tmp_path / cell.name, accuracies, classes=((80.0, 0.0), (20.0, 40.0)))
        readings.append(read_run(cell, tmp_path / cell.name))
    one = readings[0]
    assert one.accuracies == (10.0, 10.0, 20.0)
    assert one.forgetting == pytest.approx((60 + 60) / 6)
    assert one.seconds_per_round == pytest.approx(2.0)
    assert one.megabytes_per_round == pytest.approx(4.0)
    assert one.failures == 3

    write_csv(readings, tmp_path / "comparison.csv")
    with (tmp_path / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["strategy"], r["seed"], r["final"]) for r in rows][-1] == ("fedadb", "1", "90.000")

    assert {(r["reported_round"], r["reported_auc"]) for r in rows} == {("3", "")}  # no metrics.csv

    write_markdown(readings, "fedavg", tmp_path / "comparison.md", {})
    text = (tmp_path / "comparison.md").read_text()
    # best five of three rounds = their mean: FedADB 60 and 63.33, FedAvg 13.33 and 16.67
    assert "| FedADB | 2 | **61.66 ± 2.35**" in text or "| FedADB | 2 | **61.67 ± 2.35**" in text
    assert "| FedAvg | 2 | 15.00 ± 2.36" in text
    # mean FedADB curve 45, 60, 80: targets 36, 52, 68; smoothed 45, 48, 54.4
    assert "| FedADB | 1 (1.0×) | 3 (1.0×) | – |" in text
    assert "| FedAvg | – | – | – |" in text
    assert "| FedADB | 2 | +46.66 |" in text or "| FedADB | 2 | +46.67 |" in text
    assert "chosen round" not in text
    chosen = [replace(r, chosen=True, reported_round=1) for r in readings]
    write_markdown(chosen, "fedavg", tmp_path / "chosen.md", {})
    text = (tmp_path / "chosen.md").read_text()
    assert "| best five rounds | chosen round | final |" in text
    first = [r.accuracies[0] for r in readings if r.cell.strategy == "fedavg"]
    assert f"| FedAvg | 2 | 15.00 ± 2.36 | {mean_and_std(first)} |" in text
    source = (tmp_path / "comparison.tex").read_text()
    assert source.count(r"\begin{table}") == 3
    assert r"FedADB & 2 & \textbf{61.6" in source
    assert r"FedADB & 1 (1.0$\times$) & 3 (1.0$\times$) & -- \\" in source
    assert r"Accuracy in \%, mean $\pm$ sample" in source


def test_where_patience_ran_out_the_mean_goes_as_far_as_the_shortest_run(tmp_path):
    readings = []
    for seed, accuracies in enumerate(([10.0, 20.0, 30.0], [20.0, 40.0])):
        cell = Cell("fedavg", 0.1, seed)
        folder = tmp_path / cell.name
        write_run(folder, accuracies)
        if seed:
            summary = json.loads((folder / "summary.json").read_text())
            (folder / "summary.json").write_text(json.dumps({**summary, "reason": "patience=1"}))
        readings.append(read_run(cell, folder))
    assert mean_curve(readings) == ((1, 2), [15.0, 30.0])
    assert mean_curve(readings[::-1]) == ((1, 2), [15.0, 30.0])


def test_the_metrics_of_a_row_are_those_of_the_last_evaluated_round_or_the_chosen_one(tmp_path):
    rows = [f"{t},test,auc,,0.{t}" for t in (1, 2, 3)]
    for name, chosen in (("last", None), ("chosen", 2)):
        folder = tmp_path / name
        write_run(folder, [10.0, 10.0, 20.0])
        text = "\n".join(["round,part,metric,class,value", *rows])
        (folder / "metrics.csv").write_text(f"{text}\n")
        if chosen:
            summary = json.loads((folder / "summary.json").read_text())
            (folder / "summary.json").write_text(
                json.dumps({**summary, "selection": {"chosen": {"round": chosen}}})
            )
    cell = Cell("fedavg", 0.1, 0)
    write_csv([read_run(cell, tmp_path / name) for name in ("last", "chosen")], tmp_path / "c.csv")
    with (tmp_path / "c.csv").open() as file:
        found = [(r["reported_round"], r["reported_auc"]) for r in csv.DictReader(file)]
    assert found == [("3", "0.3"), ("2", "0.2")]


def test_metrics_of_other_rounds_than_the_evaluated_ones_are_a_fault(tmp_path):
    write_run(tmp_path, [10.0, 20.0])
    (tmp_path / "metrics.csv").write_text("round,part,metric,class,value\n1,test,auc,,0.5\n")
    assert "1 rounds of 2 evaluated ones" in read_files(tmp_path).faults["metrics.csv"]


@pytest.mark.parametrize(
    "text",
    ["round,part,metric\n", "round,part,metric,class,value\n1,test,auc,,nan\n",
     "round,part,metric,class,value\none,test,auc,,0.5\n"],
)  # fmt: skip
def test_a_damaged_table_of_metrics_is_a_fault(tmp_path, text):
    write_run(tmp_path, [10.0])
    (tmp_path / "metrics.csv").write_text(text)
    assert "cannot be read" in read_files(tmp_path).faults["metrics.csv"]
