"""What the server knows of the round it is in."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Message

from fedadb_app.evaluation import Evaluation
from fedadb_app.models.classifier import StateDict
from fedadb_app.runs.record import Part, RoundRecord
from strategies.server import Broadcast, RoundInputs, ServerUpdate


@dataclass
class Round:
    """One round, from the choice of its participants to its row in ``rounds.csv``.

    Attributes
    ----------
    inputs : RoundInputs
        What the method's half is told: t, T, theta^(t-1) and so on.
    broadcast : Broadcast
        What has gone out.
    record : RoundRecord
        Its row.
    participants : Mapping[int, int]
        Node id -> client, of those asked to train.
    evaluators : Mapping[int, int]
        The same of those asked to evaluate.
    sent : Sequence[Message]
        What was asked last.
    update : ServerUpdate or None
        What the half has made of the replies; None until then.
    found : dict[Part, Evaluation]
        What the server has found with the evaluated model, by part.
    mark : float
        When what is being timed began, in seconds of `time.perf_counter`.
    """

    inputs: RoundInputs
    broadcast: Broadcast
    record: RoundRecord
    participants: Mapping[int, int]
    evaluators: Mapping[int, int] = field(default_factory=dict)
    sent: Sequence[Message] = ()
    update: ServerUpdate | None = None
    found: dict[Part, Evaluation] = field(default_factory=dict)
    mark: float = field(default_factory=time.perf_counter)

    @property
    def number(self) -> int:
        """Return t, 1-based."""
        return self.record.round

    @property
    def evaluated(self) -> StateDict:
        """Return the model that is evaluated: theta^t, unless the method says otherwise."""
        if self.update is None:
            return self.inputs.model
        return self.update.model if self.update.evaluated is None else self.update.evaluated

    @property
    def also_evaluated(self) -> Mapping[str, StateDict]:
        """Return the further models that the method wants evaluated, by name."""
        return {} if self.update is None else self.update.also_evaluated

    @property
    def other_heads(self) -> tuple[str, ...]:
        """Return the heads that the method wants evaluated beside the evaluated one."""
        return () if self.update is None else self.update.other_heads

    def lap(self) -> float:
        """Return the seconds since the mark, and set it anew."""
        before, self.mark = self.mark, time.perf_counter()
        return self.mark - before
