"""Which function writes each table and figure."""

from collections.abc import Callable, Mapping
from pathlib import Path

from fedadb_app.errors import DataError
from fedadb_app.reproduction import from_curves, from_models
from fedadb_app.reproduction.outputs import Reproduction


def write(reproduction: Reproduction) -> Path:
    """Write a table or figure from the runs that are complete; return its page.

    Raises
    ------
    FedADBError
        If no run is complete, or none can be looked into: its data are not on this machine, its
        model is not kept or is damaged, or has no finite Hessian or loss.
    """
    if not reproduction.complete:
        raise DataError("no run is complete, so there is nothing to write")
    _WRITERS[reproduction.study.item](reproduction)
    return reproduction.path(".md")


_WRITERS: Mapping[str, Callable[[Reproduction], None]] = {
    "table1": from_curves.write_accuracies,
    "table2": from_curves.write_rounds_to_targets,
    "table3": from_curves.write_accuracies,
    "table4": from_curves.write_accuracies,
    "table5": from_models.write_spectrum,
    "table6": from_curves.write_accuracies,
    "figure2": from_curves.write_sweeps,
    "figure3": from_curves.write_sweeps,
    "figure4": from_curves.write_curves,
    "figure5": from_curves.write_class_accuracy,
    "figure6": from_models.write_surfaces,
    "figure7": from_models.write_tsne,
    "figure8": from_models.write_components,
    "figure9": from_models.write_anchors,
}
