"""What tests of a run's folder put into it."""

from typing import Any

from helpers import read_json

from fedadb_app.config import RunConfig
from fedadb_app.data.clients import partition_of
from fedadb_app.data.partition import Partition
from fedadb_app.data.prepared import ImageDataset
from fedadb_app.data.sources import open_dataset
from fedadb_app.runs.record import RoundRecord
from fedadb_app.runs.writer import RunFolder

CLASSES = ("cat", "dog, wet")


def evaluated(server_round: int, accuracy: float) -> RoundRecord:
    return RoundRecord(server_round, accuracy=accuracy, class_accuracy=(accuracy, accuracy))


def summary(folder: RunFolder) -> dict[str, Any]:
    found: dict[str, Any] = read_json(folder.path / "summary.json")
    return found


def write_partition(
    folder: RunFolder, config: RunConfig, clients: int = 4
) -> tuple[Partition, ImageDataset]:
    dataset = open_dataset("digits", "")
    partition = partition_of(config, clients)
    folder.write_partition(partition, config, dataset)
    return partition, dataset


def resuming(values: dict[str, Any], run: str = "run", **changes: Any) -> dict[str, Any]:
    """The values of a run that resumes another one."""
    folder = f"{values['output-dir']}/{run}"
    return {**values, "run-name": "next", "resume-from": folder, **changes}
