"""FedAvg without a framework: what a round costs if nothing but its arithmetic is done.

The same participants, samples, steps, evaluation and number of worker processes as the app; images
are normalised once and stay in memory as float32; the largest clients are handed out first. Nothing
is checked, recorded or drawn anew.
"""

import multiprocessing as mp
import time
from multiprocessing.queues import Queue

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from fedadb_app.aggregation import ClientUpdate, sample_weights, weighted_mean
from fedadb_app.config import RunConfig
from fedadb_app.data.clients import partition_of
from fedadb_app.data.registry import preparation_of
from fedadb_app.data.sources import open_dataset
from fedadb_app.local_training import autocast
from fedadb_app.models.classifier import ImageClassifier, ModelSpec, build_classifier
from strategies.participants import draw_participants


def build(config: RunConfig) -> ImageClassifier:
    """Return the app's model with its one head."""
    dataset = open_dataset(config.dataset, config.data_dir)
    return build_classifier(ModelSpec.of(config, dataset.schema), config.seed)


def train(
    model: ImageClassifier,
    images: torch.Tensor,
    labels: torch.Tensor,
    config: RunConfig,
    learning_rate: float,
) -> None:
    """Train the model in place on samples that lie on its device."""
    model.train()
    optimizer = torch.optim.SGD(
        model.parameters(), learning_rate, config.momentum, weight_decay=config.weight_decay
    )
    for _ in range(config.local_epochs):
        order = torch.randperm(len(images), device=images.device)
        for batch in order.split(config.batch_size):
            optimizer.zero_grad()
            with autocast(config, images.device):
                loss = F.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()


def normalised(pixels: npt.NDArray[np.uint8], config: RunConfig) -> torch.Tensor:
    """Turn pixels into model input."""
    preparation = preparation_of(config.dataset)
    return preparation.normalise(torch.from_numpy(pixels), torch.device("cpu"))


def work(config: RunConfig, clients: int, tasks: "Queue", results: "Queue") -> None:
    """Train whichever client comes next, until told to end."""
    torch.set_num_threads(1)
    dataset = open_dataset(config.dataset, config.data_dir)
    partition = partition_of(config, clients)
    model = build(config)
    while (task := tasks.get()) is not None:
        client, state, learning_rate = task
        rows = partition.indices[client]
        images = normalised(dataset.train_images[rows], config)
        labels = torch.from_numpy(dataset.train_labels[rows])
        model.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        train(model, images, labels, config, learning_rate)
        results.put((client, {name: t.numpy() for name, t in model.state_dict().items()}))


def evaluate(
    model: ImageClassifier, images: torch.Tensor, labels: torch.Tensor, config: RunConfig
) -> float:
    """Return the accuracy, in percent."""
    size = model.evaluation_batch
    model.eval()
    with torch.inference_mode(), autocast(config, images.device):
        right = [
            int((model(x).argmax(1) == y).sum())
            for x, y in zip(images.split(size), labels.split(size), strict=True)
        ]
    return 100 * sum(right) / len(labels)


def bare_rounds(config: RunConfig, clients: int, workers: int) -> list[float]:
    """Run ``num-server-rounds`` rounds of FedAvg and return the seconds of each."""
    dataset = open_dataset(config.dataset, config.data_dir)
    partition = partition_of(config, clients)
    test_images = normalised(dataset.test_images[:], config)
    test_labels = torch.from_numpy(dataset.test_labels)
    model = build(config)
    context = mp.get_context("spawn")
    tasks, results = context.Queue(), context.Queue()
    processes = [
        context.Process(target=work, args=(config, clients, tasks, results)) for _ in range(workers)
    ]
    for process in processes:
        process.start()
    seconds = []
    try:
        for server_round in range(1, config.num_server_rounds + 1):
            start = time.perf_counter()
            chosen = draw_participants(
                config.seed, server_round, range(clients), config.fraction_train
            )
            sizes = {client: len(partition.indices[client]) for client in chosen}
            state = {name: t.numpy() for name, t in model.state_dict().items()}
            for client in sorted(chosen, key=sizes.__getitem__, reverse=True):
                tasks.put((client, state, config.learning_rate_at(server_round)))
            trained = dict(results.get() for _ in chosen)
            updates = [
                ClientUpdate(
                    client,
                    {name: torch.from_numpy(array) for name, array in trained[client].items()},
                    sizes[client],
                )
                for client in chosen
            ]
            mean = weighted_mean([update.arrays for update in updates], sample_weights(updates))
            model.load_state_dict(mean)
            evaluate(model, test_images, test_labels, config)
            seconds.append(time.perf_counter() - start)
    finally:
        for _ in processes:
            tasks.put(None)
        for process in processes:
            process.join(timeout=60)
    return seconds
