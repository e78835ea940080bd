"""What a run ends with beside its last model: the chosen one, and what both say of each image."""

import logging
import math
from collections.abc import Mapping

from fedadb_app.aggregation import in_types_of
from fedadb_app.evaluation import Evaluation
from fedadb_app.local_training import Attachment
from fedadb_app.metrics import BETTER, missed_rung
from fedadb_app.models.classifier import StateDict
from fedadb_app.runs.checkpoint import Checkpoint
from fedadb_app.runs.predictions import Predictions
from fedadb_app.runs.record import METRICS, METRICS_HEADER, Part
from fedadb_app.runs.tables import Table, metric, read_metrics
from strategies.evaluation import evaluate_parts
from strategies.round import Round
from strategies.server_run import ServerRun

logger = logging.getLogger("flwr.fedadb")

Found = Mapping[Part, Evaluation]


class EarlyStop(Exception):  # noqa: N818 - no error: the run ends well
    """A run ends before its last round; the text says why."""


class Outcome:
    """The server's last evaluation, and that of the round that validation has chosen.

    The chosen round is the first of those with the best value, as ``metrics.csv`` has it.

    Parameters
    ----------
    run : ServerRun
        For the configuration, the data and the folder.

    Attributes
    ----------
    best : StateDict
        The model of the chosen round, as it was evaluated; empty while there is none.
    """

    def __init__(self, run: ServerRun) -> None:
        self._run = run
        self._metric = run.config.select_by.removeprefix("val-")
        self._part: Part = "test" if run.config.server_evaluates else "clients"
        self._last: tuple[int, Found] | None = None  # found by the server, if it evaluates
        self._chosen: tuple[int, Found] | None = None
        self._value = math.nan
        self._waited = 0  # evaluated rounds since the chosen one
        self.best: StateDict = {}

    def note(self, this: Round) -> None:
        """Keep what has been found in a round, and choose the round if it is the best."""
        if not this.record.metrics:
            return
        self._last = this.number, this.found
        if not self._metric:
            return
        table = Table(METRICS_HEADER, this.record.metric_rows(self._run.schema.class_names))
        if self._look(table) is None:
            return
        self._chosen = this.number, this.found
        evaluated = in_types_of(this.inputs.model, this.evaluated)
        self.best = {name: tensor.clone() for name, tensor in evaluated.items()}
        self._tell(table)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on with the round that the earlier run had chosen."""
        if not self._metric or METRICS not in checkpoint.facts.tables:
            return
        table = read_metrics(checkpoint.facts.tables[METRICS])
        chosen = self._look(table)
        if chosen is None:
            return
        self.best = checkpoint.best
        evaluates = self._run.config.server_evaluates
        self._chosen = chosen, evaluate_parts(self._run, self.best) if evaluates else {}
        self._tell(table)

    def _look(self, table: Table) -> int | None:
        """Count evaluated rounds; return the last that is better than all before it."""
        chosen = None
        known = metric(table, "val", self._metric)
        for number in dict.fromkeys(int(row[0]) for row in table.rows):
            value = known.get(number, math.nan)
            self._waited += 1
            first = math.isnan(self._value) and not math.isnan(value)
            if first or BETTER[self._metric] * (value - self._value) > 0:
                self._value, self._waited, chosen = value, 0, number
        return chosen

    def _tell(self, table: Table) -> None:
        """Put the chosen round, and what is said of its test images, into the summary.

        These are the server's test part or, where it does not evaluate, what clients hold out.
        """
        assert self._chosen is not None
        number = self._chosen[0]
        values = {name: metric(table, self._part, name).get(number) for name in BETTER}
        self._run.folder.chosen = {
            "by": self._run.config.select_by,
            "round": number,
            "value": self._value,
            "part": self._part,
            "test": {name: value for name, value in values.items() if value is not None},
        }

    def end_if_hopeless(self) -> None:
        """End the run where ``must-reach`` or ``patience`` says so.

        Raises
        ------
        EarlyStop
            If no round so far was as good as it had to be by now, or so many evaluated rounds in a
            row were no better than the chosen one.
        """
        config = self._run.config
        if self._last is None or self._last[0] >= config.num_server_rounds:
            return
        begin = f"stopped early after round {self._last[0]}"
        better = BETTER.get(self._metric, 1)
        rung = missed_rung(config.rungs, self._last[0], self._value, better)
        if rung is not None:
            raise EarlyStop(
                f"{begin} (must-reach): {config.select_by} was at best {self._value:.6g}, and had "
                f"to be {config.rungs[rung]:.6g} by round {rung}"
            )
        if config.patience and self._waited >= config.patience:
            since = f"than in round {self._chosen[0]}" if self._chosen else "as it was never known"
            raise EarlyStop(
                f"{begin} (patience={config.patience}): {config.select_by} was no better in "
                f"{self._waited} evaluated rounds {since}"
            )

    def write(self) -> None:
        """Write ``predictions.npz``, ``confusion.csv`` and ``best.safetensors``, as far as known.

        Raises
        ------
        StorageError
            If the disk does not take them.
        """
        folder, dataset = self._run.folder, self._run.dataset
        if self.best:
            folder.write_tensors("best", Attachment(self.best))
        elif self._metric:
            logger.warning("no round could be chosen: %s was never known", self._metric)
        if self._last is None or dataset is None:
            return
        number, final = self._last
        if not final:  # clients have evaluated, and keep what they know of single images
            return
        chosen_round, chosen = self._chosen or (0, {})
        both = {
            f"{when}{part}": found[part].probabilities
            for when, found in (("final_", final), ("chosen_", chosen))
            for part in found
        }
        predictions = Predictions(
            labels=final["test"].labels,
            final=both["final_test"],
            final_round=number,
            chosen=both.get("chosen_test"),
            chosen_round=chosen_round,
            val_labels=final["val"].labels if "val" in final else None,
            val_final=both.get("final_val"),
            val_chosen=both.get("chosen_val"),
            groups=dataset.test_patients,
        )
        predictions.write(folder.path, self._run.schema.class_names)
