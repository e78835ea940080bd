"""The local training loop that every client trainer shares; on its own it is FedAvg's client.

A method overrides only what its paper changes: `begin` (a teacher, a sampler, a look at the
client's state), `loss` (another objective), `backward` (another gradient, e.g. two passes),
`finish` (an update of the client's state).
"""

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedadb_app.config import RunConfig, Settings
from fedadb_app.data.batches import Batch, LocalData
from fedadb_app.errors import ConfigError
from fedadb_app.models.classifier import ImageClassifier
from fedadb_app.randomness import torch_generator

P = TypeVar("P", bound=Settings)


@dataclass(frozen=True)
class Attachment:
    """What a method sends along with the model: named tensors and numbers."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class LocalTask:
    """One client's part of one round.

    Attributes
    ----------
    client : int
        The client's identity: partition id in simulation, node id in deployment.
    server_round, num_rounds : int
        t (1-based) and T.
    learning_rate : float
        eta_t, constant within the round.
    config : RunConfig
        Local epochs, batch size, optimiser and its values, precision, seed.
    data : LocalData
        D_k.
    attachments : Mapping[str, Attachment]
        What the method's server half sent beside the model.
    state : dict[str, torch.Tensor]
        What this client kept from its earlier rounds; a trainer may change it in `finish`.
    """

    client: int
    server_round: int
    num_rounds: int
    learning_rate: float
    config: RunConfig
    data: LocalData
    attachments: Mapping[str, Attachment] = field(default_factory=dict)
    state: dict[str, Tensor] = field(default_factory=dict)

    def generator(self, stream: str) -> torch.Generator:
        """Return the random numbers of one purpose, for this client in this round only."""
        return torch_generator(self.config.seed, stream, self.server_round, self.client)


class Trainer(Generic[P]):
    """E local epochs of mini-batch SGD (or AdamW) from the global model (McMahan et al., 2017).

    Parameters
    ----------
    model : ImageClassifier
        Holds the global model; trained in place.
    task : LocalTask
        What to train on, and how.
    params : Settings
        The method's own values.
    """

    def __init__(self, model: ImageClassifier, task: LocalTask, params: P) -> None:
        self.model = model
        self.task = task
        self.params = params

    def begin(self) -> None:
        """Prepare before the first step; the model is still the global one."""

    def loss(self, batch: Batch) -> Tensor:
        """Return the objective on one batch, a scalar."""
        return F.cross_entropy(self.model(batch.images), batch.labels)

    def backward(self, batch: Batch) -> Tensor:
        """Leave the step's gradient in ``.grad`` and return the loss, a scalar."""
        with self.autocast():
            loss = self.loss(batch)
        torch.autograd.backward(loss)
        return loss.detach()

    def finish(self) -> dict[str, float]:
        """Conclude after the last step; return the method's own metrics, free of label facts."""
        return {}

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the forward pass's precision."""
        return autocast(self.task.config, self.task.data.device)

    def train(self) -> dict[str, float]:
        """Run the local epochs.

        Returns
        -------
        dict[str, float]
            ``train-loss``, the mean of the objective over the last epoch's samples, and what
            `finish` returns.
        """
        config, data = self.task.config, self.task.data
        self.model.train()
        # A new optimiser each round: momentum is never carried over.
        optimizer = _optimizer(config, self.model, self.task.learning_rate)
        batches = self.task.generator("batches")
        self.begin()
        total = torch.zeros((), dtype=torch.float64)
        for _ in range(config.local_epochs):
            total.zero_()
            for batch in data.epoch(config.batch_size, batches):
                optimizer.zero_grad(set_to_none=True)
                total += self.backward(batch).cpu().double() * len(batch)
                if config.max_grad_norm > 0:
                    nn.utils.clip_grad_norm_(self.model.parameters(), config.max_grad_norm)
                optimizer.step()
        return {"train-loss": float(total) / len(data), **self.finish()}


def _optimizer(config: RunConfig, model: ImageClassifier, rate: float) -> torch.optim.Optimizer:
    """Return SGD with momentum, or AdamW (Loshchilov and Hutter, 2019; betas 0.9 and 0.999)."""
    if config.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), rate, weight_decay=config.weight_decay)
    return torch.optim.SGD(
        model.parameters(), rate, momentum=config.momentum, weight_decay=config.weight_decay
    )


def frozen_copy(model: ImageClassifier) -> ImageClassifier:
    """Return the model as it is now, in evaluation mode and without gradients: a teacher."""
    return copy.deepcopy(model).eval().requires_grad_(False)


@contextlib.contextmanager
def perturbed(parameters: Sequence[Tensor], offsets: Sequence[Tensor]) -> Iterator[None]:
    """Add offsets to parameters for a while; they come back bitwise, from a copy."""
    before = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter, offset in zip(parameters, offsets, strict=True):
            parameter.add_(offset)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)


def autocast(config: RunConfig, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return bfloat16 autocast where ``precision="bf16"``, and nothing otherwise."""
    if config.precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def choose_device(wanted: str) -> torch.device:
    """Turn the run configuration's ``device`` into a torch device; ``auto`` prefers CUDA.

    Raises
    ------
    ConfigError
        If the device is not there.
    """
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if wanted == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    device = torch.device(wanted)
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    if not available[device.type] or (device.index or 0) >= count:
        raise ConfigError(
            f'device="{wanted}" is not available on this machine: '
            f'{count if device.type == "cuda" else 0} found; use "auto" or "cpu"'
        )
    return device
