"""`python -m benchmarks.peer_pfl`: Apple's simulator pfl against the same bare loop, FedAvg only.

pfl is no dependency of ours; try it in an environment of its own, where the app is installed too::

    pip install -e . "pfl[pytorch]==0.6.0"

Same model, partition, participants, number of local steps, weights and evaluation as the bare loop
and the app; set up as pfl's guide advises for speed: as many processes as the bare loop has
workers, clients spread over them by size, evaluation spread too. What differs is pfl's own: it cuts
a client's samples into batches once, without shuffling, and adds up in float32. The learning rate
stays constant on both sides.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.bare import bare_rounds, build, normalised
from fedadb_app.config import RunConfig
from fedadb_app.data.clients import partition_of
from fedadb_app.data.sources import open_dataset
from strategies.participants import draw_participants


def main(
    dataset: Annotated[str, typer.Option(help="As in the run configuration.")] = "pathmnist",
    data_dir: Annotated[str, typer.Option(help="As in the run configuration.")] = "",
    clients: Annotated[int, typer.Option(help="K.")] = 100,
    participants: Annotated[int, typer.Option(help="Clients a round.")] = 5,
    rounds: int = 11,
    repetitions: int = 3,
) -> None:
    """Run both in alternation; print seconds a round, the first round left out."""
    workers = os.cpu_count() or 1
    config = RunConfig.model_validate(
        {
            "dataset": dataset,
            "data-dir": data_dir,
            "model": "lenet",
            "num-server-rounds": rounds,
            "fraction-train": participants / clients,
            "learning-rate-decay": 1.0,
        }
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launch += ["--nproc-per-node", str(workers), "-m", "benchmarks.peer_pfl"]
    launch += [config.model_dump_json(by_alias=True), str(clients)]
    bare: list[float] = []
    pfl: list[float] = []
    accuracies: list[float] = []
    for _ in range(repetitions):
        bare += bare_rounds(config, clients, workers)[1:]
        printed = subprocess.run(launch, check=True, stdout=subprocess.PIPE, text=True).stdout
        result = json.loads(printed.splitlines()[-1])
        pfl += result["seconds"]
        accuracies.append(result["accuracy"])
    table = Table("", "s/round: min", "median", "max", "to bare")
    for name, seconds in {"bare loop": bare, "pfl": pfl}.items():
        median = statistics.median(seconds)
        spread = [f"{value:.2f}" for value in (min(seconds), median, max(seconds))]
        table.add_row(name, *spread, f"{median / statistics.median(bare):.2f}")
    console = Console()
    console.print(
        f"{dataset}, lenet, K={clients}, {participants} a round, alpha={config.alpha}, {workers} "
        f"workers, {repetitions} x {rounds} rounds; pfl's last accuracies: {accuracies}"
    )
    console.print(table)


class PflClassifier(nn.Module):
    """The app's model with the two methods that pfl asks of one."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__()
        self.net = build(config)

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy."""
        self.train()
        return F.cross_entropy(self.net(images), labels)

    @torch.inference_mode()
    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, object]:
        """Return the share of right answers, to be averaged over batches and processes."""
        from pfl.metrics import Weighted

        self.eval()
        right = int((self.net(images).argmax(1) == labels).sum())
        return {"accuracy": Weighted(right, len(labels))}


def pfl_rounds(config: RunConfig, clients: int) -> None:
    """Be one of pfl's processes; the first prints the seconds of all rounds but the first."""
    # Imported here alone: pfl joins the other processes as soon as it is imported.
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.callback.central_evaluation import CentralEvaluationCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import MinimizeReuseUserSampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class Clock(TrainingProcessCallback):
        """The last callback, so that a round ends after its evaluation."""

        def __init__(self) -> None:
            self.ends: list[float] = []
            self.accuracy = 0.0

        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            self.ends.append(time.perf_counter())
            if central_iteration > 0:  # pfl evaluates before the first round, not after it
                found = aggregate_metrics.to_simple_dict()["Central val | accuracy"]
                self.accuracy = round(100 * found, 2)
            return False, Metrics()

    torch.set_num_threads(1)
    dataset = open_dataset(config.dataset, config.data_dir)
    rows = partition_of(config, clients).indices

    def samples(client: int) -> PyTorchTensorDataset:
        images = normalised(dataset.train_images[rows[client]], config)
        return PyTorchTensorDataset((images, torch.from_numpy(dataset.train_labels[rows[client]])))

    rounds = [
        draw_participants(config.seed, server_round, range(clients), config.fraction_train)
        for server_round in range(1, config.num_server_rounds + 1)
    ]
    federation = FederatedDataset(
        samples,
        MinimizeReuseUserSampler(list(itertools.chain.from_iterable(rounds))),
        {client: len(positions) for client, positions in enumerate(rows)},
    )
    test = PyTorchTensorDataset(
        (
            normalised(dataset.test_images[:], config),
            torch.from_numpy(dataset.test_labels),
        )
    )
    net = PflClassifier(config)
    clock = Clock()
    evaluation = NNEvalHyperParams(local_batch_size=net.net.evaluation_batch)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=len(rounds),
            evaluation_frequency=len(rounds),  # of the clients' own data: in the first round alone
            train_cohort_size=len(rounds[0]),
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(federation, federation, [WeightByDatapoints()]),
        model=PyTorchModel(
            net,
            partial(torch.optim.SGD, momentum=config.momentum, weight_decay=config.weight_decay),
            torch.optim.SGD(net.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=config.local_epochs,
            local_learning_rate=config.learning_rate,
            local_batch_size=config.batch_size,
        ),
        model_eval_params=evaluation,
        callbacks=[CentralEvaluationCallback(test, evaluation), clock],
        send_metrics_to_platform=False,
    )
    if torch.distributed.get_rank() == 0:
        seconds = [after - before for before, after in itertools.pairwise(clock.ends)]
        print(json.dumps({"seconds": seconds, "accuracy": clock.accuracy}))


if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" in os.environ:  # one of the processes that `main` has started
        pfl_rounds(RunConfig.model_validate_json(sys.argv[1]), int(sys.argv[2]))
    else:
        typer.run(main)
