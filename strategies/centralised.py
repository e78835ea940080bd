"""Centralised training: all images in one place. A reference, not a federated method.

What training without a federation reaches with the same net and as much work. In round t of a
federation the participants K_t pass E n images, n = sum_{k in K_t} n_k. Here the server does so,
on the clients' training images taken together: E times n of them, drawn without replacement from
all, in batches of B, with the client's optimiser, at the round's learning rate. That is ceil(n / B)
steps a pass, where the clients together take sum_k ceil(n_k / B). Nobody is asked to train and
nothing is sent for it. With one client this is FedAvg bit by bit.

Refused where nodes have their own images, which stay there, and with ``privacy`` and ``robust``:
there is no client to protect, nor to protect against.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fedadb_app.aggregation import ClientUpdate
from fedadb_app.config import RunConfig
from fedadb_app.data.batches import Batch, LocalData
from fedadb_app.data.clients import PartitionClaim, client_data
from fedadb_app.errors import ConfigError
from fedadb_app.local_training import LocalTask, Trainer, choose_device
from strategies.fedavg import FedAvg, FedAvgParams
from strategies.method import Method
from strategies.round import Round
from strategies.server_run import ServerRun

CENTRE = 0
"""The identity that the place of all images trains under: whose batches a lone client has."""


@dataclass(frozen=True)
class SomeOfAll(LocalData):
    """All training images, of which a pass draws `images`."""

    images_a_pass: int = 0

    def __len__(self) -> int:
        return self.images_a_pass

    def epoch(self, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Yield one pass over images drawn from all, none twice."""
        order = torch.randperm(len(self.positions), generator=generator)[: len(self)]
        draws = self.draw_augmentation(len(self), generator)
        for start in range(0, len(self), batch_size):
            part = slice(start, start + batch_size)
            yield Batch(self, order[part], None if draws is None else draws[part])


def all_images(config: RunConfig, clients: int, images_a_pass: int) -> SomeOfAll:
    """Return every client's training images in one place, client by client."""
    device = choose_device(config.device)
    parts = [client_data(config, PartitionClaim(k, clients), device).train for k in range(clients)]
    return SomeOfAll(
        parts[0].images,
        torch.cat([part.positions for part in parts]),
        torch.cat([part.labels for part in parts]),
        parts[0].num_classes,
        device,
        parts[0].augmented,
        parts[0].preparation,
        images_a_pass,
    )


def train_in_one_place(run: ServerRun, clients: int, this: Round, images: int) -> ClientUpdate:
    """Train `images` images a pass, E passes, from the global model; return the new one.

    Parameters
    ----------
    run : ServerRun
        For the configuration and the working copy of the model.
    clients : int
        K, among whom the images are divided.
    this : Round
        For t, T, theta^(t-1) and the learning rate.
    images : int
        n, what the round's participants hold together.
    """
    run.model.load_state_dict(this.inputs.model)
    task = LocalTask(
        client=CENTRE,
        server_round=this.number,
        num_rounds=this.inputs.num_rounds,
        learning_rate=this.record.learning_rate,
        config=run.config,
        data=all_images(run.config, clients, images),
    )
    metrics = Trainer(run.model, task, run.params).train()
    return ClientUpdate(CENTRE, run.model.state_copy(), images, metrics)


def refuse(config: RunConfig, params: FedAvgParams) -> None:
    """Refuse what leaves the images where they are, or protects clients that are not asked."""
    del params
    if config.own_data:
        raise ConfigError(
            'strategy="centralised" is not possible where nodes have their own images, which stay '
            "there: use it in a simulation, or with a data set that the server has"
        )
    for key, value in (("privacy", config.privacy), ("robust", config.robust)):
        if value != "none":
            raise ConfigError(
                f'{key}="{value}" is not possible with strategy="centralised", which asks no client'
            )


METHOD = Method(
    title="Centralised",
    paper="a reference: all images in one place",
    params=FedAvgParams,
    trainer=Trainer,
    server=FedAvg,
    refuse=refuse,
    train_in_one_place=train_in_one_place,
)
