"""`python -m benchmarks.robust`: what robust rules cost honest clients, and save with hostile ones.

Rounds of a method in one process, without Flower: the app's clients, its robust means and the
method's server half. Of K clients all are honest, or the first few flip their labels (c becomes
C - 1 - c), or send theta - 10 (theta_k - theta). Accuracy is the last round's, on the test set; it
is no time, so other programs may run beside it.
"""

import csv
import itertools
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

import torch
import typer
from rich.console import Console
from rich.table import Table

from fedadb_app.aggregation import ClientUpdate
from fedadb_app.config import RunConfig
from fedadb_app.data.batches import LocalData
from fedadb_app.data.clients import PartitionClaim, client_data, whole_test_part
from fedadb_app.data.registry import preparation_of
from fedadb_app.data.sources import open_dataset
from fedadb_app.evaluation import evaluate
from fedadb_app.federation_keys import RobustRule
from fedadb_app.local_training import LocalTask
from fedadb_app.models.classifier import ModelSpec, StateDict, build_classifier
from fedadb_app.robust import robust_mean
from strategies.registry import METHODS
from strategies.server import RoundInputs, Workbench

RULES = ("none", "clip-median", "trimmed-mean", "median")
ATTACKS = ("nobody", "flipping", "scaling")
CPU = torch.device("cpu")


def main(
    strategies: Annotated[str, typer.Option(help="Names with commas.")] = "fedavg,fedadb",
    alphas: Annotated[str, typer.Option(help="Numbers, or iid.")] = "0.1,iid",
    dataset: str = "digits",
    data_dir: str = "",
    clients: Annotated[int, typer.Option(help="K.")] = 20,
    hostile: Annotated[int, typer.Option(help="How many of them.")] = 2,
    rounds: int = 15,
    epochs: int = 2,
    batch_size: int = 32,
    learning_rate: float = 0.05,
    seeds: int = 3,
    output: Path = Path("robust.csv"),
) -> None:
    """Write each run's accuracy as it ends, then print mean and range over seeds."""
    torch.set_num_threads(1)
    found: dict[tuple[str, ...], list[float]] = defaultdict(list)
    with output.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["seed", "strategy", "alpha", "hostile", "robust", "accuracy"])
        for seed, *cell in itertools.product(
            range(seeds), strategies.split(","), alphas.split(","), ATTACKS, RULES
        ):
            strategy, alpha, attack, rule = map(str, cell)
            config = RunConfig.model_validate(
                {
                    "strategy": strategy,
                    "dataset": dataset,
                    "data-dir": data_dir,
                    "model": "lenet",
                    "num-server-rounds": rounds,
                    "local-epochs": epochs,
                    "batch-size": batch_size,
                    "learning-rate": learning_rate,
                    "seed": seed,
                    "robust": rule,
                    "partition": "iid" if alpha == "iid" else "dirichlet",
                }
                | ({} if alpha == "iid" else {"alpha": float(alpha)})
            )
            accuracy = accuracy_of(config, clients, hostile, attack)
            writer.writerow([seed, *cell, f"{accuracy:.2f}"])
            file.flush()
            found[strategy, alpha, attack, rule].append(accuracy)
    _show(found)


def accuracy_of(config: RunConfig, clients: int, hostile: int, attack: str) -> float:
    """Run all rounds; return the last global model's accuracy in percent."""
    method = METHODS[config.strategy]
    source = open_dataset(config.dataset, config.data_dir)
    spec = ModelSpec.of(config, source.schema)
    net = build_classifier(spec, config.seed, method.heads)
    preparation = preparation_of(config.dataset)
    bench = Workbench(net, source.schema, preparation.valid_range, config.seed, config)
    params = method.params()
    half = method.server.of_run(params, bench)
    parts = [client_data(config, PartitionClaim(k, clients), CPU).train for k in range(clients)]
    if attack == "flipping":
        parts[:hostile] = [flipped(part) for part in parts[:hostile]]
    model = _copied(net.state_dict())
    state: Mapping[str, torch.Tensor] = {}
    mean_examples = sum(map(len, parts)) / clients
    for t in range(1, config.num_server_rounds + 1):
        inputs = RoundInputs(
            t,
            config.num_server_rounds,
            config.learning_rate_decay,
            clients,
            mean_examples,
            model,
            net.parameter_names(),
            state,
        )
        sent = half.broadcast(inputs)
        updates = []
        for k, data in enumerate(parts):
            net.load_state_dict(sent.model)
            rate = config.learning_rate_at(t)
            task = LocalTask(k, t, config.num_server_rounds, rate, config, data, sent.attachments)
            method.trainer(net, task, params).train()
            trained = _copied(net.state_dict())
            if attack == "scaling" and k < hostile:
                trained = {n: sent.model[n] - 10 * (v - sent.model[n]) for n, v in trained.items()}
            updates.append(ClientUpdate(k, trained, len(data)))
        if config.robust != "none":
            models = [u.arrays for u in updates]
            rule = cast(RobustRule, config.robust)
            mean = robust_mean(rule, sent.model, models, inputs.parameter_names, config.trim_share)
            updates = [ClientUpdate(-1, mean, 1)]
        update = half.update(inputs, updates)
        model, state = update.model, update.state
    net.load_state_dict(model)
    return evaluate(net, whole_test_part(source, CPU, preparation), config).accuracy


def flipped(data: LocalData) -> LocalData:
    """Return a client's samples with class c called C - 1 - c."""
    return replace(data, labels=data.num_classes - 1 - data.labels)


def _copied(model: StateDict) -> StateDict:
    return {name: tensor.detach().clone() for name, tensor in model.items()}


def _show(found: Mapping[tuple[str, ...], list[float]]) -> None:
    table = Table("strategy", "alpha", "hostile", *RULES)
    for row in dict.fromkeys(key[:3] for key in found):
        cells = [found[(*row, rule)] for rule in RULES]
        table.add_row(
            *row, *(f"{statistics.mean(c):.1f} ({min(c):.1f}–{max(c):.1f})" for c in cells)
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
