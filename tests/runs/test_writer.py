"""A run's folder: where it is made, its configuration, and the tensors that it keeps."""

import json
import shutil
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from helpers import identical
from run_folders import CLASSES, evaluated, write_partition
from safetensors import safe_open
from safetensors.torch import load_file

from fedadb_app.app_hash import running_app_hash
from fedadb_app.config import RunConfig
from fedadb_app.errors import ConfigError, StorageError
from fedadb_app.local_training import Attachment
from fedadb_app.runs.reader import snapshots
from fedadb_app.runs.writer import RunFolder

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
    packages, where = found.pop("packages"), found.pop("origin")
    assert found == {**config.model_dump(by_alias=True), "fedadb": own}
    assert packages["torch"] == version("torch")
    assert packages["flwr"] == version("flwr")
    assert packages["numpy"] == version("numpy")
    assert packages["python"].startswith("3.")
    assert where["app-hash"] == running_app_hash()
    assert {"git", "system", "processor", "cores", "memory", "gpu"} < set(where)


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
    """Make writing the (after + 1)-th file fail half way."""
    written = []

    def open_on_full_disk(path, mode="r", **options):
        file = open_(path, mode, **options)
        if mode == "wb":
            if len(written) == after:
                file.write(b"half")
                file.close()
                raise OSError(28, "No space left on device")
            written.append(path)
        return file

    open_ = Path.open
    monkeypatch.setattr(Path, "open", open_on_full_disk)


def test_a_full_disk_leaves_the_file_as_it_was(folder, monkeypatch):
    folder.write_tensors("model", Attachment({"w": torch.zeros(2)}))
    fill_the_disk(monkeypatch, after=0)
    with pytest.raises(StorageError, match="No space left"):
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
    with pytest.raises(StorageError, match="No space left"):
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
