"""``summary.json``: what it says after each kind of end, and the means by hand."""

import json
import threading

import pytest
from run_folders import CLASSES, evaluated, summary, write_partition

from fedadb_app.errors import TrainingError
from fedadb_app.runs.record import RoundRecord
from fedadb_app.runs.summary import accuracy_summary, selection_summary
from fedadb_app.runs.writer import RunFolder


def test_a_completed_run(folder):
    with folder:
        folder.add_round(evaluated(1, 50.0), CLASSES)
        folder.add_round(evaluated(2, 60.0), CLASSES)
    found = summary(folder)
    assert found.pop("seconds") >= 0
    assert found == {
        "status": "completed",
        "rounds": 2,
        "final_accuracy": 60.0,
        "best5_accuracy": 55.0,
        "last50_accuracy": 55.0,
        "selection": selection_summary({}),
        "strategy": "fedadb",
        "dataset": "digits",
        "alpha": 0.1,
        "seed": 3,
    }


def test_the_summary_counts_the_clients(folder, config):
    write_partition(folder, config, clients=6)
    with folder:
        pass
    assert summary(folder)["clients"] == 6


def one_round_and(folder: RunFolder, error: BaseException) -> None:
    with folder:
        folder.add_round(evaluated(1, 50.0), CLASSES)
        raise error


def test_a_failed_run_says_why_and_keeps_what_it_had(folder):
    with pytest.raises(TrainingError):
        one_round_and(folder, TrainingError("round 2: 0 of 3 clients"))
    found = summary(folder)
    assert (found["status"], found["reason"]) == ("failed", "round 2: 0 of 3 clients")
    assert (found["rounds"], found["final_accuracy"]) == (1, 50.0)


@pytest.mark.parametrize("error", [KeyError("x"), AssertionError(), RuntimeError("CUDA")])
def test_a_defect_of_the_app_has_a_reason_too(folder, error):
    with pytest.raises(type(error)):
        one_round_and(folder, error)
    found = summary(folder)
    assert found["status"] == "failed"
    assert type(error).__name__ in found["reason"]
    assert str(error) in found["reason"]


class RunNotRunningError(BaseException):
    """Like Flower's own, with which a stopped run ends."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RunNotRunningError])
def test_a_stopped_run(folder, error):
    with pytest.raises(error):
        one_round_and(folder, error())
    found = summary(folder)
    assert found["status"] == "stopped"
    assert "after round 1" in found["reason"]
    assert (found["rounds"], found["final_accuracy"]) == (1, 50.0)


def test_a_run_that_is_stopped_from_another_thread(folder):
    """`flwr stop` ends the process of a simulation; only an exit handler still runs."""
    with folder:
        folder.add_round(evaluated(1, 50.0), CLASSES)
        thread = threading.Thread(target=folder.stop)
        thread.start()
        thread.join()
        assert summary(folder)["status"] == "stopped"
        folder.add_round(evaluated(2, 60.0), CLASSES)  # the run's thread may still be at it
    assert summary(folder)["status"] == "stopped"


def test_the_end_of_a_run_is_final(folder):
    with folder:
        pass
    folder.stop()  # the exit handler of a process that has finished its run
    assert summary(folder)["status"] == "completed"


def test_a_run_in_its_first_round(folder):
    with folder:
        found = summary(folder)
    assert found["status"] == "running"
    assert found["rounds"] == 0
    assert found["final_accuracy"] is found["best5_accuracy"] is found["last50_accuracy"] is None


def test_every_json_file_is_strict_json(folder, config):
    """NaN is no JSON; a browser refuses the whole file."""
    write_partition(folder, config)
    with folder:
        folder.add_round(RoundRecord(1, class_accuracy=()), CLASSES)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    for path in folder.path.glob("*.json"):
        json.loads(path.read_text(), parse_constant=refuse)
    assert not list(folder.path.glob("*.tmp"))


@pytest.mark.parametrize(
    ("accuracies", "final", "best5", "last50"),
    [
        ([], None, None, None),
        ([12.34], 12.34, 12.34, 12.34),
        ([10.0, 30.0, 20.0], 20.0, 20.0, 20.0),
        ([1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0], 4.0, 6.2, 4.86),
        ([10.0, 10.0, 10.01], 10.01, 10.0, 10.0),
        ([100.0] * 10 + [0.0] * 50, 0.0, 100.0, 0.0),
        ([0.0] + [50.0] * 49 + [100.0], 100.0, 60.0, 51.0),
    ],
)
def test_means_by_hand(accuracies, final, best5, last50):
    assert accuracy_summary(accuracies) == {
        "final_accuracy": final,
        "best5_accuracy": best5,
        "last50_accuracy": last50,
    }


def test_accuracy_that_clients_measured_counts_without_classes(folder):
    with folder:
        folder.add_round(RoundRecord(1, accuracy=40.0), CLASSES)
        folder.add_round(RoundRecord(2), CLASSES)
        folder.add_round(RoundRecord(3, accuracy=60.0), CLASSES)
    found = summary(folder)
    assert (found["final_accuracy"], found["best5_accuracy"]) == (60.0, 50.0)
    assert not (folder.path / "class_accuracy.csv").exists()


def test_rounds_that_were_not_evaluated_do_not_count(folder):
    with folder:
        for t in range(1, 11):
            record = evaluated(t, 10.0 * t) if t % 5 == 0 else RoundRecord(t)
            folder.add_round(record, CLASSES)
    found = summary(folder)
    assert found["rounds"] == 10
    assert (found["final_accuracy"], found["best5_accuracy"]) == (100.0, 75.0)
