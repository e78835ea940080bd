"""What a run keeps of each test image: written, read back, and counted."""

import numpy as np
import pytest
from helpers import read_csv

from fedadb_app.errors import DataError
from fedadb_app.runs.predictions import Predictions

NAMES = ("cat", "dog, wet")
LABELS = np.array([0, 1, 1])
FINAL = np.array([[0.75, 0.25], [0.625, 0.375], [0.125, 0.875]], np.float32)
CHOSEN = np.array([[0.25, 0.75], [0.5, 0.5], [0.125, 0.875]], np.float32)
ALL = Predictions(
    LABELS,
    FINAL,
    final_round=9,
    chosen=CHOSEN,
    chosen_round=4,
    val_labels=np.array([1]),
    val_final=FINAL[2:],
    val_chosen=CHOSEN[:1],
    groups=np.array([7, 7, 8]),
)


@pytest.mark.parametrize("written", [Predictions(LABELS, FINAL, 9), ALL])
def test_what_is_written_is_read(tmp_path, written):
    written.write(tmp_path, NAMES)
    found = Predictions.read(tmp_path)
    assert vars(found).keys() == vars(written).keys()
    for name, value in vars(written).items():
        assert np.array_equal(getattr(found, name), value), name
    with np.load(tmp_path / "predictions.npz", allow_pickle=False) as file:
        assert ("chosen_round" in file.files) == bool(written.chosen_round)


def test_the_counts_are_those_of_the_most_probable_classes(tmp_path):
    ALL.write(tmp_path, NAMES)
    rows = [tuple(row.values()) for row in read_csv(tmp_path / "confusion.csv")]
    cat, dog = NAMES
    pairs = [(cat, cat), (cat, dog), (dog, cat), (dog, dog)]

    def counted(number: str, part: str, counts: str) -> list[tuple[str, ...]]:
        return [(number, part, *p, n) for p, n in zip(pairs, counts, strict=True)]

    expected = counted("9", "test", "1011") + counted("9", "val", "0001")
    # of two equal probabilities the first class is given
    expected += counted("4", "test", "0111") + counted("4", "val", "0001")
    assert rows == expected


def test_the_chosen_round_may_be_the_last_one(tmp_path):
    Predictions(LABELS, FINAL, 9, chosen=FINAL, chosen_round=9).write(tmp_path, NAMES)
    assert len(read_csv(tmp_path / "confusion.csv")) == 4


def test_a_run_need_not_have_any(tmp_path):
    assert Predictions.read(tmp_path) is None


@pytest.mark.parametrize(
    "arrays",
    [
        {"labels": LABELS, "final": FINAL[:2], "final_round": 1},
        {"labels": LABELS + 1, "final": FINAL, "final_round": 1},
        {"labels": LABELS, "final": FINAL[0], "final_round": 1},
        {"labels": LABELS, "final": FINAL, "final_round": 1, "groups": LABELS[:1]},
        {"labels": LABELS, "final": FINAL, "final_round": 1, "more": FINAL},
        {"labels": LABELS, "final_round": 1},
        {"labels": np.array([{"a": 1}]), "final": FINAL, "final_round": 1},  # a pickle
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, arrays):
    np.savez(tmp_path / "predictions.npz", **arrays)
    with pytest.raises(DataError, match=r"predictions\.npz cannot be read"):
        Predictions.read(tmp_path)


def test_a_file_that_was_cut_off_is_refused(tmp_path):
    ALL.write(tmp_path, NAMES)
    path = tmp_path / "predictions.npz"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"predictions\.npz cannot be read"):
        Predictions.read(tmp_path)
