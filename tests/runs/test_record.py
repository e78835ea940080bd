"""What a round leaves in the tables, cell by cell."""

import csv
import math

import pytest
from helpers import read_csv
from run_folders import CLASSES, evaluated, summary

from fedadb_app.runs.record import RoundRecord

HEADER = (
    "round,accuracy,loss,learning_rate,anchor_quality,clients,failures,bytes_down,bytes_up,"
    "seconds_anchors,seconds_train,seconds_aggregate,seconds_evaluate,epsilon"
)
"""As DESIGN.md prints it, and what privacy adds at the end."""


# --- rounds.csv -----------------------------------------------------------------------------


def test_the_header_is_there_from_the_start(folder):
    assert (folder.path / "rounds.csv").read_text() == HEADER + "\n"


def test_a_row(folder):
    folder.add_round(
        RoundRecord(
            round=7,
            accuracy=83.456,
            loss=0.123456789,
            learning_rate=0.01,
            anchor_quality=0.9,
            clients=5,
            failures=1,
            bytes_down=123456789012,
            bytes_up=42,
            seconds_anchors=0.12345,
            seconds_train=12.0,
            seconds_aggregate=0.0004,
            seconds_evaluate=1.5,
            epsilon=2.3456789,
            class_accuracy=(100.0, 66.667),
        ),
        CLASSES,
    )
    text = (folder.path / "rounds.csv").read_text()
    expected = "7,83.46,0.123457,0.01,0.9,5,1,123456789012,42,0.123,12.000,0.000,1.500,2.34568"
    assert text == f"{HEADER}\n{expected}\n"


def test_what_is_unknown_is_blank_and_what_is_nothing_is_zero(folder):
    folder.add_round(RoundRecord(1), CLASSES)
    assert read_csv(folder.path / "rounds.csv") == [
        {
            "round": "1",
            "accuracy": "",
            "loss": "",
            "learning_rate": "",
            "anchor_quality": "",
            "clients": "0",
            "failures": "0",
            "bytes_down": "0",
            "bytes_up": "0",
            "seconds_anchors": "0.000",
            "seconds_train": "0.000",
            "seconds_aggregate": "0.000",
            "seconds_evaluate": "0.000",
            "epsilon": "",
        }
    ]


@pytest.mark.parametrize(
    ("value", "cell"), [(0.0, "0.00"), (100.0, "100.00"), (8.0, "8.00"), (99.999, "100.00")]
)
def test_accuracies_have_two_decimals(folder, value, cell):
    folder.add_round(evaluated(1, value), CLASSES)
    assert read_csv(folder.path / "rounds.csv")[0]["accuracy"] == cell
    assert read_csv(folder.path / "class_accuracy.csv")[0]["cat"] == cell


def test_rows_can_be_read_while_the_run_goes_on(folder):
    """A progress bar, or a user with a plot, reads along."""
    with folder:
        for t in (1, 2, 3):
            folder.add_round(evaluated(t, 10.0 * t), CLASSES)
            assert [row["round"] for row in read_csv(folder.path / "rounds.csv")] == [
                str(i) for i in range(1, t + 1)
            ]
            assert len(read_csv(folder.path / "class_accuracy.csv")) == t
            assert summary(folder)["status"] == "running"
            assert summary(folder)["rounds"] == t
            assert summary(folder)["final_accuracy"] == 10.0 * t


# --- class_accuracy.csv ---------------------------------------------------------------------


def test_class_accuracy(folder):
    folder.add_round(RoundRecord(1, accuracy=50.0, class_accuracy=(100.0, math.nan)), CLASSES)
    folder.add_round(RoundRecord(2), CLASSES)
    folder.add_round(RoundRecord(3, accuracy=50.0, class_accuracy=(0.0, 33.333)), CLASSES)
    with (folder.path / "class_accuracy.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["round", "cat", "dog, wet"],
            ["1", "100.00", ""],  # a class without a test sample has no accuracy
            ["3", "0.00", "33.33"],
        ]


# --- diagnostics.csv ------------------------------------------------------------------------


def test_diagnostics_are_in_long_form(folder):
    folder.add_round(RoundRecord(1, diagnostics={"train_loss": 0.25, "a, b": 1e-9}), CLASSES)
    folder.add_round(RoundRecord(2), CLASSES)
    folder.add_round(RoundRecord(3, diagnostics={"other": 2.0}), CLASSES)
    rows = [tuple(row.values()) for row in read_csv(folder.path / "diagnostics.csv")]
    assert rows == [("1", "a, b", "1e-09"), ("1", "train_loss", "0.25"), ("3", "other", "2")]


def test_what_a_method_found_goes_into_its_column_and_nothing_else_into_any(folder):
    record = RoundRecord(1, accuracy=40.0)
    record.add({"anchor_quality": 0.5, "accuracy": 99.0, "rounds": 3.0})
    folder.add_round(record, CLASSES)
    (row,) = read_csv(folder.path / "rounds.csv")
    assert (row["anchor_quality"], row["accuracy"]) == ("0.5", "40.00")
    rows = [tuple(row.values()) for row in read_csv(folder.path / "diagnostics.csv")]
    assert rows == [("1", "accuracy", "99"), ("1", "rounds", "3")]


# --- metrics.csv ----------------------------------------------------------------------------


def test_metrics_are_in_long_form_and_unknown_ones_have_no_value(folder):
    of_test = [("auc", None, 0.987654321), ("sensitivity", 0, 97.5), ("sensitivity", 1, math.nan)]
    folder.add_round(
        RoundRecord(1, metrics={"test": of_test, "val": [("auc", None, 1.0)]}), CLASSES
    )
    folder.add_round(RoundRecord(2), CLASSES)
    with (folder.path / "metrics.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["round", "part", "metric", "class", "value"],
            ["1", "test", "auc", "", "0.987654"],
            ["1", "test", "sensitivity", "cat", "97.5"],
            ["1", "test", "sensitivity", "dog, wet", ""],
            ["1", "val", "auc", "", "1"],
        ]
