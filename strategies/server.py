"""A method's server half: plain values in, plain values out.

A method overrides two hooks, each about its paper alone:

``broadcast``   what goes out in a round (default: the global model and nothing beside it)
``update``      the new global model from the clients' replies, and what the method makes beside it

A half keeps nothing between rounds and touches no message, folder or client: what it remembers is
the `ServerUpdate.state` it returned the round before, named tensors that a checkpoint saves.

With ``privacy="central"``, `update` is given one update, the noised mean of the round, and
everything after it is made of that: no method can release more. With ``robust`` it is given one as
well, the robust mean. A half that needs the single updates says so (`needs_each_update`), and its
method is refused with either.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Self, TypeVar

from torch import Tensor

from fedadb_app.aggregation import ClientUpdate
from fedadb_app.config import RunConfig, Settings
from fedadb_app.data.arrays import ImageSchema
from fedadb_app.evaluation import Evaluation
from fedadb_app.local_training import Attachment
from fedadb_app.models.classifier import ImageClassifier, StateDict

P = TypeVar("P", bound=Settings)


@dataclass(frozen=True)
class Workbench:
    """What a half may compute with, for those that need more than tensors.

    Attributes
    ----------
    model : ImageClassifier
        A working copy on the server's device; whoever uses it loads the weights it needs.
    schema : ImageSchema
        Classes, and the shape of an input.
    valid_range : tuple[torch.Tensor, torch.Tensor]
        Least and greatest model input, per channel.
    seed : int
        The run's.
    config : RunConfig
        The shared run configuration.
    test : Callable or None
        A model -> what it finds on the server's whole test set; None = the server evaluates none.
    """

    model: ImageClassifier
    schema: ImageSchema
    valid_range: tuple[Tensor, Tensor]
    seed: int
    config: RunConfig = field(default_factory=RunConfig)
    test: Callable[[StateDict], Evaluation] | None = None


@dataclass(frozen=True)
class RoundInputs:
    """What a half is told of a round.

    Attributes
    ----------
    server_round, num_rounds : int
        t (1-based) and T.
    learning_rate_decay : float
        By what the clients' learning rate shrinks from round to round.
    num_clients : int
        K, all clients ever admitted to the federation, whether they take part, or are still there,
        or not.
    mean_examples : float
        Mean n_k over all K.
    model : StateDict
        theta^(t-1), the global model before the round.
    parameter_names : tuple[str, ...]
        The trained tensors of the model, in order; the others are buffers.
    state : Mapping[str, torch.Tensor]
        What the half returned as its state in the last round; empty before the first.
    """

    server_round: int
    num_rounds: int
    learning_rate_decay: float
    num_clients: int
    mean_examples: float
    model: StateDict
    parameter_names: tuple[str, ...]
    state: Mapping[str, Tensor] = field(default_factory=dict)

    def kept(self, name: str) -> StateDict:
        """Return the tensors of the state that are called ``<name>/...``, by what follows."""
        prefix = f"{name}/"
        return {n.removeprefix(prefix): t for n, t in self.state.items() if n.startswith(prefix)}


@dataclass(frozen=True)
class Broadcast:
    """What goes out in a round.

    Attributes
    ----------
    model : StateDict
        What the participants start from.
    attachments : Mapping[str, Attachment]
        What is sent beside it, by record name.
    artifacts : Mapping[str, Attachment]
        What the run's folder keeps of this round, while it is the last, by file name.
    diagnostics : Mapping[str, float]
        Goes to the column of ``rounds.csv`` of that name, or else to ``diagnostics.csv``.
    """

    model: StateDict
    attachments: Mapping[str, Attachment] = field(default_factory=dict)
    artifacts: Mapping[str, Attachment] = field(default_factory=dict)
    diagnostics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerUpdate:
    """What a half makes of the clients' replies.

    Attributes
    ----------
    model : StateDict
        theta^t; in any floating-point type, it is kept in the global model's.
    state : Mapping[str, torch.Tensor]
        What the half needs again in the next round.
    diagnostics : Mapping[str, float]
        As in `Broadcast`.
    evaluated : StateDict or None
        The model that is evaluated; None = theta^t.
    also_evaluated : Mapping[str, StateDict]
        Further models, whose accuracy goes to ``diagnostics.csv`` as ``accuracy_<name>``.
    evaluation : Evaluation or None
        What the round found on the test set, where no single model says it; None = a model does.
    other_heads : tuple[str, ...]
        Heads of the evaluated model that are evaluated beside its evaluated one, and the mean of
        all their probabilities; ``diagnostics.csv`` has them as ``accuracy_<name>_head`` and
        ``accuracy_mean_of_heads``. They share one pass through the extractor.
    """

    model: StateDict
    state: Mapping[str, Tensor] = field(default_factory=dict)
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    evaluated: StateDict | None = None
    also_evaluated: Mapping[str, StateDict] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    other_heads: tuple[str, ...] = ()


class ServerHalf(Generic[P]):
    """A method's server half.

    Parameters
    ----------
    params : Settings
        The method's own values.
    """

    needs_each_update: ClassVar[bool] = False

    def __init__(self, params: P) -> None:
        self.params = params

    @classmethod
    def of_run(cls, params: P, bench: Workbench) -> Self:
        """Make the half of a run; one that computes with the model takes the workbench."""
        del bench
        return cls(params)

    def broadcast(self, inputs: RoundInputs) -> Broadcast:
        """Return what goes out in a round."""
        return Broadcast(inputs.model)

    @abstractmethod
    def update(self, inputs: RoundInputs, updates: Sequence[ClientUpdate]) -> ServerUpdate:
        """Return what the round's replies lead to; `updates` are in identity order, at least one.

        Raises
        ------
        TrainingError
            If nothing can be made of them; the run then ends with the global model it had.
        """
