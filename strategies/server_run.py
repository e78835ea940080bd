"""What a run's server works with, from its first round to its last."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedadb_app.config import RunConfig, Settings
from fedadb_app.data.arrays import ImageSchema
from fedadb_app.data.partition import Partition
from fedadb_app.data.prepared import ImageDataset
from fedadb_app.data.registry import preparation_of
from fedadb_app.evaluation import Evaluation
from fedadb_app.models.classifier import ImageClassifier, StateDict
from fedadb_app.runs.writer import RunFolder
from strategies.method import Method
from strategies.server import ServerHalf, Workbench


@dataclass
class ServerRun:
    """What a run's server works with.

    Attributes
    ----------
    config : RunConfig
        The shared run configuration.
    method : Method
        The method.
    params : Settings
        The method's own values.
    model : ImageClassifier
        A working copy on the server's device; its weights are loaded as needed.
    schema : ImageSchema
        Classes, and the shape of an input.
    dataset : ImageDataset or None
        For evaluation; None where nobody but the nodes has data.
    partition : Partition or None
        Who holds what of the data set; None where each node has its own data.
    folder : RunFolder
        Where rounds are recorded.
    """

    config: RunConfig
    method: Method
    params: Settings
    model: ImageClassifier
    schema: ImageSchema
    dataset: ImageDataset | None
    partition: Partition | None
    folder: RunFolder

    def server_half(self, test: Callable[[StateDict], Evaluation] | None = None) -> ServerHalf[Any]:
        """Make the method's server half; `test` is how it may evaluate a model."""
        valid_range = preparation_of(self.config.dataset).valid_range
        config = self.config
        bench = Workbench(self.model, self.schema, valid_range, config.seed, config, test)
        return self.method.server.of_run(self.params, bench)

    @property
    def partition_hash(self) -> str:
        """Tells one partition from another; empty where nodes have their own data."""
        return self.partition.hash if self.partition else ""
