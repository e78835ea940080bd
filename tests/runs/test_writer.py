"""A run's folder: its files, their cells, and what is there after each kind of end."""

import csv
import json
import math
import shutil
import threading
import tomllib
from importlib.metadata import version

import numpy as np
import pytest
import torch
from helpers import identical, read_csv, read_json
from safetensors import safe_open
from safetensors.torch import load_file

from fedadb_app.config import RunConfig
from fedadb_app.data.arrays import ImageSchema
from fedadb_app.data.clients import SampleCounts, partition_of
from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import ConfigError, TrainingError
from fedadb_app.local_training import Attachment
from fedadb_app.runs import writer
from fedadb_app.runs.reader import accuracy_summary, snapshots
from fedadb_app.runs.writer import RoundRecord, RunFolder

HEADER = (
    "round,accuracy,loss,learning_rate,anchor_quality,clients,failures,bytes_down,bytes_up,"
    "seconds_anchors,seconds_train,seconds_aggregate,seconds_evaluate,epsilon"
)
"""As DESIGN.md prints it, and what privacy adds at the end."""

CLASSES = ("cat", "dog, wet")


@pytest.fixture
def config(tmp_path) -> RunConfig:
    return RunConfig(output_dir=str(tmp_path), run_name="run", dataset="digits", seed=3)


@pytest.fixture
def folder(config) -> RunFolder:
    return RunFolder.create(config, run_id=1)


def evaluated(server_round: int, accuracy: float) -> RoundRecord:
    return RoundRecord(server_round, accuracy=accuracy, class_accuracy=(accuracy, accuracy))


def summary(folder: RunFolder) -> dict:
    return read_json(folder.path / "summary.json")


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


# --- summary.json ---------------------------------------------------------------------------


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


# --- the folder -----------------------------------------------------------------------------


def test_the_folder_is_output_dir_and_run_name(folder, tmp_path):
    assert folder.path == tmp_path / "run"
    assert folder.path.is_dir()


def test_without_a_name_two_runs_get_two_folders(tmp_path):
    config = RunConfig(output_dir=str(tmp_path), dataset="/data/my set.npz", strategy="fedavg")
    paths = {RunFolder.create(config, run_id).path for run_id in (2**63 + 1, 2**63 + 2)}
    assert len(paths) == 2
    assert all(path.parent == tmp_path for path in paths)
    assert all("fedavg" in path.name and "seed0" in path.name for path in paths)


def test_without_output_dir_it_is_in_the_users_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert RunFolder.create(RunConfig(run_name="x"), 1).path == tmp_path / "fedadb-runs" / "x"
    config = RunConfig(output_dir="~/elsewhere", run_name="x")
    assert RunFolder.create(config, 1).path == tmp_path / "elsewhere" / "x"


def test_a_folder_that_holds_a_run_is_refused_and_untouched(config, tmp_path):
    held = tmp_path / "run"
    held.mkdir()
    (held / "rounds.csv").write_text("precious")
    with pytest.raises(ConfigError, match=r'run-name="run".*already holds a run'):
        RunFolder.create(config, run_id=1)
    assert [p.name for p in held.iterdir()] == ["rounds.csv"]
    assert (held / "rounds.csv").read_text() == "precious"


def test_an_empty_folder_is_taken(config, tmp_path):
    (tmp_path / "run").mkdir()
    assert RunFolder.create(config, run_id=1).path == tmp_path / "run"


@pytest.mark.parametrize("below", [".", "deep/er"])
def test_a_folder_that_cannot_be_made(tmp_path, below):
    """Even root can not make a folder below a file."""
    (tmp_path / "file").write_text("")
    config = RunConfig(output_dir=str(tmp_path / "file" / below), run_name="run")
    with pytest.raises(ConfigError, match=r"output-dir=.*cannot be written to") as error:
        RunFolder.create(config, run_id=1)
    assert str(tmp_path / "file") in str(error.value)


def test_a_file_in_the_way_of_the_folder(config, tmp_path):
    (tmp_path / "run").write_text("precious")
    with pytest.raises(ConfigError):
        RunFolder.create(config, run_id=1)
    assert (tmp_path / "run").read_text() == "precious"


# --- config.toml ----------------------------------------------------------------------------


def test_the_configuration_parses_back(folder, config):
    own = {"anchor-steps": 7, "beta": "0.5", "use-anchors": False, "anchor-l2": 1e-7}
    folder.write_config(config, own)
    found = tomllib.loads((folder.path / "config.toml").read_text())
    packages = found.pop("packages")
    assert found == {**config.model_dump(by_alias=True), "fedadb": own}
    assert packages["torch"] == version("torch")
    assert packages["flwr"] == version("flwr")
    assert packages["numpy"] == version("numpy")
    assert packages["python"].startswith("3.")


def test_difficult_texts_and_numbers_parse_back(tmp_path):
    config = RunConfig(
        output_dir=str(tmp_path),
        run_name="run",
        dataset='/data/"quoted" \\ ü\n.npz',
        weight_decay=1e-300,
        seed=2**63 - 1,
    )
    folder = RunFolder.create(config, 1)
    folder.write_config(config, {})
    found = tomllib.loads((folder.path / "config.toml").read_text(encoding="utf-8"))
    assert found["dataset"] == config.dataset
    assert found["weight-decay"] == 1e-300
    assert found["seed"] == 2**63 - 1


# --- partition.json -------------------------------------------------------------------------


def write_partition(folder: RunFolder, config: RunConfig, clients: int = 4):
    dataset = open_dataset("digits", "")
    partition = partition_of(config, clients)
    folder.write_partition(partition, config, dataset)
    return partition, dataset


def test_the_partition_is_described(folder, config):
    partition, dataset = write_partition(folder, config)
    found = read_json(folder.path / "partition.json")
    assert (found["rule"], found["alpha"], found["seed"]) == ("dirichlet", 0.1, 3)
    assert found["hash"] == partition.hash
    assert found["classes"] == list(dataset.class_names)
    assert len(found["clients"]) == 4
    for client, part in zip(found["clients"], partition.indices, strict=True):
        labels = dataset.train_labels[part].tolist()
        assert client["size"] == len(part)
        assert client["class_counts"] == [labels.count(c) for c in range(10)]
    total = np.sum([client["class_counts"] for client in found["clients"]], axis=0)
    assert total.tolist() == np.bincount(dataset.train_labels).tolist()


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        ("dirichlet", {"alpha": 0.1}),
        ("iid", {}),
        ("domain", {"classes_per_client": 2}),
    ],
)
def test_of_a_partition_only_what_its_rule_reads_is_told(folder, config, rule, settings):
    dataset = open_dataset("digits", "")
    partition = partition_of(RunConfig(), 4)
    folder.write_partition(partition, config.model_copy(update={"partition": rule}), dataset)
    found = read_json(folder.path / "partition.json")
    keys = ("rule", "alpha", "classes_per_client")
    assert {key: found[key] for key in keys if key in found} == {"rule": rule, **settings}


def test_of_nodes_with_their_own_data_only_sizes_are_told(folder):
    schema = ImageSchema(("cat", "dog"), (1, 28, 28))
    stated = {2**63 + 5: SampleCounts(70, 9), 12: SampleCounts(1, 0)}
    folder.write_nodes(stated, schema)
    assert read_json(folder.path / "partition.json") == {
        "rule": "nodes",
        "classes": ["cat", "dog"],
        "clients": [{"client": 12, "size": 1}, {"client": 2**63 + 5, "size": 70}],
    }
    folder.write_summary("running")
    assert summary(folder)["clients"] == 2


def test_a_hash_stands_for_one_assignment(tmp_path):
    hashes = set()
    for seed, alpha in ((0, 0.1), (1, 0.1), (0, 0.2)):
        name = f"{seed}-{alpha}"
        config = RunConfig(output_dir=str(tmp_path), run_name=name, seed=seed, alpha=alpha)
        folder = RunFolder.create(config, 1)
        write_partition(folder, config)
        hashes.add(read_json(folder.path / "partition.json")["hash"])
    assert len(hashes) == 3


# --- tensors --------------------------------------------------------------------------------


def test_the_model_is_there_bit_by_bit(folder):
    model = {
        "weight": torch.randn(3, 4),
        "view": torch.randn(4, 3).t(),
        "count": torch.tensor(5),
    }
    folder.write_tensors("model", Attachment(model))
    back = load_file(folder.path / "model.safetensors")
    assert identical(back, {name: tensor.contiguous() for name, tensor in model.items()})


def test_tensors_and_numbers(folder):
    folder.write_tensors("anchors", Attachment({"labels": torch.arange(3)}, {"quality": 0.1}))
    with safe_open(folder.path / "anchors.safetensors", "pt") as file:
        assert list(file.keys()) == ["labels"]
        assert {key: float(value) for key, value in file.metadata().items()} == {"quality": 0.1}


def test_a_file_is_replaced_by_its_newer_version(folder):
    folder.write_tensors("model", Attachment({"w": torch.zeros(2)}))
    folder.write_tensors("model", Attachment({"w": torch.ones(2)}))
    assert torch.equal(load_file(folder.path / "model.safetensors")["w"], torch.ones(2))


def fill_the_disk(monkeypatch, after: int) -> None:
    """Make writing the tensors of the (after + 1)-th file fail half way."""
    written = []

    def save_file(tensors, path, metadata):
        if len(written) == after:
            path.write_bytes(b"half")
            raise OSError("No space left on device")
        written.append(path)
        save_to(tensors, path, metadata)

    save_to = writer.save_file
    monkeypatch.setattr(writer, "save_file", save_file)


def test_a_full_disk_leaves_the_file_as_it_was(folder, monkeypatch):
    folder.write_tensors("model", Attachment({"w": torch.zeros(2)}))
    fill_the_disk(monkeypatch, after=0)
    with pytest.raises(OSError, match="No space left"):
        folder.write_tensors("model", Attachment({"w": torch.ones(2)}))
    assert torch.equal(load_file(folder.path / "model.safetensors")["w"], torch.zeros(2))


def kept_of(value: float) -> dict[str, Attachment]:
    return {name: Attachment({"w": torch.full((2,), value)}) for name in ("model", "anchors")}


def values_in(kept) -> dict[str, float]:
    return {path.stem: load_file(path)["w"][0].item() for path in kept.iterdir()}


@pytest.mark.parametrize("after", [0, 1])
def test_a_snapshot_is_whole_or_not_there(folder, monkeypatch, after):
    folder.write_snapshot(1, kept_of(1.0))
    fill_the_disk(monkeypatch, after)
    with pytest.raises(OSError, match="No space left"):
        folder.write_snapshot(2, kept_of(2.0))
    assert list(snapshots(folder.path)) == [1]
    monkeypatch.undo()
    folder.write_snapshot(2, kept_of(3.0))  # leftovers are in nobody's way
    assert values_in(snapshots(folder.path)[2]) == {"model": 3.0, "anchors": 3.0}


def test_a_snapshot_takes_the_place_of_the_rounds_older_one(folder):
    for value in (1.0, 2.0):
        folder.write_snapshot(1, kept_of(value))
    assert values_in(snapshots(folder.path)[1]) == {"model": 2.0, "anchors": 2.0}
    assert [path.name for path in (folder.path / "snapshots").iterdir()] == ["round0001"]


def test_snapshots_are_in_the_order_of_their_rounds_and_strays_are_none(folder):
    for server_round in (10_000, 2, 9999):
        folder.write_snapshot(server_round, kept_of(1.0))
    for stray in ("round0001-old", "roundx", "round", "round0003.tmp"):
        shutil.copytree(folder.path / "snapshots" / "round0002", folder.path / "snapshots" / stray)
    assert list(snapshots(folder.path)) == [2, 9999, 10_000]


def test_nothing_is_pickled(folder, config):
    write_partition(folder, config)
    folder.write_config(config, {})
    folder.write_tensors("model", Attachment({"w": torch.zeros(2)}))
    with folder:
        folder.add_round(evaluated(1, 50.0), CLASSES)
    suffixes = {path.suffix for path in folder.path.rglob("*") if path.is_file()}
    assert suffixes == {".csv", ".json", ".toml", ".safetensors"}
    header = (folder.path / "model.safetensors").read_bytes()
    length = int.from_bytes(header[:8], "little")
    assert set(json.loads(header[8 : 8 + length])) <= {"w", "__metadata__"}
