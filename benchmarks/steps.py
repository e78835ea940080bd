"""`python -m benchmarks.steps`: one client's local training, one device, no Flower.

The bare loop is plain PyTorch on the same samples; FedAvg's and FedADB's clients are set beside it,
and the server's anchors and evaluation. Works on any device: `--device cuda --precision bf16`.
"""

import statistics
import time
from collections.abc import Callable
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.bare import train
from fedadb_app.anchors import AnchorSettings, ClassAnchors, generate_anchors
from fedadb_app.config import RunConfig
from fedadb_app.data.clients import PartitionClaim, client_data, whole_test_part
from fedadb_app.data.sources import open_dataset
from fedadb_app.evaluation import Evaluation, evaluate
from fedadb_app.local_training import LocalTask, choose_device
from fedadb_app.metrics import metrics_of
from fedadb_app.models.classifier import ModelSpec, build_classifier
from fedadb_app.randomness import torch_generator
from strategies.fedadb import as_attachment
from strategies.registry import METHODS


def main(
    dataset: Annotated[str, typer.Option(help="As in the run configuration.")] = "pathmnist",
    data_dir: Annotated[str, typer.Option(help="As in the run configuration.")] = "",
    model: str = "lenet",
    norm: str = "batch",
    device: str = "cpu",
    precision: str = "fp32",
    clients: Annotated[int, typer.Option(help="K.")] = 100,
    client: Annotated[int, typer.Option(help="Which of the partitions to train on.")] = 0,
    epochs: int = 5,
    repetitions: int = 5,
    threads: Annotated[int, typer.Option(help="torch threads.")] = 1,
) -> None:
    """Measure and print the median, with its ratio to the bare loop."""
    torch.set_num_threads(threads)
    config = RunConfig.model_validate(
        {
            "dataset": dataset,
            "data-dir": data_dir,
            "model": model,
            "norm": norm,
            "precision": precision,
            "local-epochs": epochs,
        }
    )
    where = choose_device(device)
    source = open_dataset(config.dataset, config.data_dir)
    data = client_data(config, PartitionClaim(client, clients), where).train
    spec = ModelSpec.of(config, source.schema)

    def bare() -> None:
        pixels = torch.from_numpy(source.train_images[data.positions.numpy()])
        images = data.preparation.normalise(pixels, where)
        train(build_classifier(spec, 0).to(where), images, data.labels, config, 0.01)

    server = build_classifier(spec, 0, METHODS["fedadb"].heads).to(where)

    def anchors() -> ClassAnchors:
        return generate_anchors(
            server,
            spec.num_classes,
            spec.image_shape,
            data.preparation.valid_range,
            AnchorSettings(),
            torch_generator(0, "anchors", 1),
        )

    sent = {"anchors": as_attachment(anchors())}

    def trains(name: str) -> Callable[[], object]:
        method = METHODS[name]

        def run() -> None:
            net = build_classifier(spec, 0, method.heads).to(where)
            task = LocalTask(client, 1, 100, 0.01, config, data, sent)
            method.trainer(net, task, method.params()).train()

        return run

    def evaluates() -> Evaluation:
        return evaluate(server, whole_test_part(source, where, data.preparation), config)

    found = evaluates()

    def measures() -> None:
        metrics_of(found.labels, found.probabilities)

    jobs = {
        "bare loop": bare,
        "FedAvg, client": trains("fedavg"),
        "FedADB, client": trains("fedadb"),
        "FedADB, anchors": anchors,
        "evaluation": evaluates,
        "its metrics": measures,
    }
    table = Table("", "seconds", "to bare")
    first = 0.0
    for name, job in jobs.items():
        median = _median(job, repetitions, where)
        first = first or median
        table.add_row(name, f"{median:.3f}", f"{median / first:.2f}")
    console = Console()
    console.print(
        f"{spec.architecture}, {precision}, {where}, {threads} threads: client {client} of "
        f"{clients}, {len(data)} images, {epochs} epochs"
    )
    console.print(table)


def _median(job: Callable[[], object], repetitions: int, device: torch.device) -> float:
    seconds = []
    for _ in range(repetitions + 1):
        start = time.perf_counter()
        job()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])  # the first one loads


if __name__ == "__main__":
    typer.run(main)
