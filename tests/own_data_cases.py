"""Three hospitals with their own data, for the tests of such federations."""

import numpy as np
from faults import edited, first
from helpers import read_csv

HOSPITALS = ([0, 1, 2, 3] * 10, [0] * 25 + [1] * 5, [3] * 12)
"""Labels of three skewed nodes; a fifth of each class is held out: 8 + 6 + 2 samples."""

HELD_OUT = (8, 6, 2)


def diagnostics(built, name: str) -> list[float]:
    rows = read_csv(built.folder.path / "diagnostics.csv")
    return [float(row["value"]) for row in rows if row["name"] == name]


def in_round(built, server_round: int, action) -> None:
    """Do something when a round's instructions go out."""
    built.grid.before_train = lambda t: action() if t == server_round else None


def answers(correct: int, loss: float):
    """A fault: this client's counts, whatever it found."""
    return edited(metrics=lambda m: {**m, "num-correct": correct, "loss": loss})


def add(number: float):
    return edited(first(lambda a: a + np.float32(number)))
