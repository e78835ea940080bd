"""A federation in one process, own data, and what a run leaves."""

import contextlib
import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fake_grid import FakeGrid, node_id, server_context, simulated_nodes
from faults import Fault
from flwr.app import Message

import server_app
from fedadb_app.data.clients import image_schema, partition_of, server_dataset
from fedadb_app.runs.record import RoundRecord
from fedadb_app.runs.summary import accuracy_summary
from fedadb_app.runs.writer import RunFolder
from fedadb_app.wire_arrays import to_arrays
from strategies.federated import FederatedStrategy
from strategies.fit import fitting_model
from strategies.registry import read_run_config
from strategies.roster import Roster
from strategies.server_run import ServerRun

REPOSITORY = Path(__file__).resolve().parents[1]


def own_data(
    path: Path,
    labels: Sequence[int],
    test: Sequence[int] = (),
    shape: tuple[int, ...] = (28, 28),
    seed: int = 0,
) -> dict[str, Any]:
    """Write a node's own data, bright where the class says, and return its node config."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for part, held in (("train", labels), ("test", test)):
        if len(held):
            images = rng.integers(0, 100, (len(held), *shape), np.uint8)
            for image, label in zip(images, held, strict=True):
                image[7 * (label % 4) : 7 * (label % 4) + 7] += 100
            arrays |= {f"{part}_images": images, f"{part}_labels": np.array(held)}
    np.savez(path, **arrays)
    return {"data-path": str(path)}


def federation_of_nodes(classes: int = 4, shape: str = "1x28x28") -> dict[str, Any]:
    """The run configuration where nobody but the nodes has data."""
    names = ",".join(f"class-{c}" for c in range(classes))
    return {"dataset": "nodes", "classes": names, "image-shape": shape, "evaluate": "clients"}


def serve(
    values: Mapping[str, Any],
    clients: int = 2,
    run_id: int = 7,
    crash_in: int = 0,
    nodes: dict[int, dict[str, Any]] | None = None,
) -> FakeGrid:
    """Run the whole app; a crash comes when the round's clients have trained and kept their state.

    Each run has fresh nodes, so nothing in a node's memory outlives it.
    """

    def crash(replies: list[Message]) -> Iterable[Message]:
        raise KeyboardInterrupt

    nodes = simulated_nodes(clients) if nodes is None else nodes
    grid = FakeGrid(values, nodes, run_id=run_id)
    grid.before_train = lambda t: t == crash_in and setattr(grid, "arrange", crash)
    with contextlib.suppress(KeyboardInterrupt):
        server_app.app(grid, server_context(values, run_id))
    return grid


@dataclass
class Federation:
    """A strategy, its clients and its folder; `run` is what Flower does."""

    grid: FakeGrid
    strategy: FederatedStrategy
    folder: RunFolder

    def run(self) -> Any:
        config = self.strategy.run.config
        return self.strategy.start(
            self.grid,
            to_arrays(self.strategy.global_model),
            num_rounds=config.num_server_rounds,
            timeout=config.round_timeout,
            evaluate_fn=self.strategy.evaluate_round,
        )

    @property
    def rows(self) -> list[dict[str, str]]:
        return read_csv(self.folder.path / "rounds.csv")

    def fault(self, partition: int, fault: Fault) -> None:
        self.grid.faults[node_id(partition)] = fault


def make_federation(
    values: Mapping[str, Any], clients: int = 3, nodes: dict[int, dict[str, Any]] | None = None
) -> Federation:
    """Build what server_app's `main` builds, and wait for the nodes."""
    config, method, params = read_run_config(values)
    dataset, schema = server_dataset(config), image_schema(config)
    model = fitting_model(config, method, schema, dataset)
    folder = RunFolder.create(config, run_id=7)
    grid = FakeGrid(values, simulated_nodes(clients) if nodes is None else nodes)
    roster = Roster(config)
    roster.gather(grid)
    partition = None if config.own_data else partition_of(config, roster.num_clients)
    run = ServerRun(config, method, params, model, schema, dataset, partition, folder)
    return Federation(grid, FederatedStrategy(run, roster), folder)


def write_run(
    folder: Path,
    accuracies: Sequence[float],
    status: str = "completed",
    classes: Sequence[Sequence[float]] = ((100.0, 0.0),),
) -> None:
    """Write what a run leaves, with `accuracies` every round."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "rounds.csv").open("w") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(RoundRecord.header())
        for number, accuracy in enumerate(accuracies, start=1):
            record = RoundRecord(number, accuracy=accuracy, clients=2, failures=1)
            record.bytes_down, record.bytes_up = 3_000_000, 1_000_000
            record.seconds_train, record.seconds_anchors = 1.5, 0.5
            writer.writerow(record.row())
    rows = [classes[min(i, len(classes) - 1)] for i in range(len(accuracies))]
    lines = [",".join(["round", "a", "b"])]
    lines += [",".join([str(i + 1), *(f"{c:.2f}" for c in row)]) for i, row in enumerate(rows)]
    (folder / "class_accuracy.csv").write_text("\n".join(lines) + "\n")
    shown = [round(accuracy, 2) for accuracy in accuracies]
    summary = {"status": status, "rounds": len(shown), "seconds": 1.5, **accuracy_summary(shown)}
    (folder / "summary.json").write_text(json.dumps(summary))


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def identical(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two state dicts are equal bit by bit."""
    return one.keys() == other.keys() and all(
        one[k].dtype == other[k].dtype
        and one[k].shape == other[k].shape
        and one[k].numpy().tobytes() == other[k].numpy().tobytes()
        for k in one
    )


def messages_of(records: Sequence[Any], level: str) -> list[str]:
    """The logged texts of one level, by this app."""
    return [
        r.getMessage() for r in records if r.levelname == level and r.name.startswith("flwr.fedadb")
    ]
