"""``summary.json``: how a run stands or ended, and the accuracies that it is judged by."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fedadb_app.errors import DataError
from fedadb_app.runs.personalised import personalised_in_words
from fedadb_app.runs.text_files import read

SUMMARY = "summary.json"
BEST_ROUNDS, LAST_ROUNDS = 5, 50

Status = Literal["running", "completed", "failed", "stopped"]


def accuracy_summary(accuracies: Sequence[float]) -> dict[str, float | None]:
    """Return the final accuracy, the mean of the five best rounds and of the last fifty (percent).

    With fewer evaluated rounds the means are over what there is; with none they are None.
    """
    if not accuracies:
        return {"final_accuracy": None, "best5_accuracy": None, "last50_accuracy": None}
    best = sorted(accuracies)[-BEST_ROUNDS:]
    last = accuracies[-LAST_ROUNDS:]
    return {
        "final_accuracy": accuracies[-1],
        "best5_accuracy": round(sum(best) / len(best), 2),
        "last50_accuracy": round(sum(last) / len(last), 2),
    }


def selection_summary(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return which accuracy was chosen how, and the round that validation chose, if one was."""
    how = {
        "final_accuracy": "of the last evaluated round",
        "best5_accuracy": "mean of the five rounds that are best on the images it is measured on: "
        "the paper's statistic, too high by what picking gains",
        "last50_accuracy": "mean of the last fifty evaluated rounds",
    }
    return {**how, **({"chosen": dict(chosen)} if chosen else {})}


def in_words(summary: Mapping[str, Any]) -> str:
    """Return a run's accuracies and how each was chosen, in a line."""
    if summary.get("final_accuracy") is None:
        return "nothing was evaluated"
    said = [
        f"accuracy: final {summary['final_accuracy']} %",
        f"last fifty rounds {summary['last50_accuracy']} %",
        f"best five rounds {summary['best5_accuracy']} % (picked on the same images)",
    ]
    chosen = summary.get("selection", {}).get("chosen")
    if chosen:
        test = chosen["test"]["accuracy"]
        said.append(f"round {chosen['round']} {test} % (chosen by {chosen['by']})")
    return ", ".join([*said, *personalised_in_words(summary.get("personalised", {}))])


def read_summary(folder: Path) -> dict[str, Any]:
    """Return a run's ``summary.json``; nothing while it has none, or one that is damaged."""
    try:
        return read(folder / SUMMARY, json.loads) or {}
    except DataError:
        return {}


def parse_summary(text: str) -> dict[str, Any]:
    """Parse a run's ``summary.json``, each number as it is written.

    Raises
    ------
    KeyError, ValueError
        If it is no JSON, or lacks what every run says.
    """
    content = numbers_as_text(text)
    _ = content["status"], int(content["rounds"]), content["seconds"]
    if "selection" in content:
        _ = dict(dict(content["selection"]).get("chosen", {}))
    personalised_in_words(dict(content.get("personalised", {})))
    return content


def numbers_as_text(text: str) -> dict[str, Any]:
    """Parse JSON, leaving each number as it is written."""
    content: dict[str, Any] = json.loads(text, parse_float=str, parse_int=str)
    return content
