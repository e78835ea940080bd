"""What a call of `fedadb reproduce` is about: studies as it varies them, and their runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fedadb_app.assignments import as_assignments
from fedadb_app.comparison.grid import CELL_KEYS, Cell, Grid
from fedadb_app.config import Scalar
from fedadb_app.errors import ConfigError
from fedadb_app.flower_run import Simulation
from fedadb_app.reproduction.catalogue import study_of
from fedadb_app.reproduction.entries import Entry, Study
from fedadb_app.runs.checkpoint import MAY_DIFFER


@dataclass(frozen=True)
class Plan:
    """A study, and the runs that it needs: a grid per setting.

    Attributes
    ----------
    study : Study
        Which table or figure.
    grids : Mapping[str, Grid]
        By the setting's name, which is that of their folder.
    """

    study: Study
    grids: Mapping[str, Grid]

    def cells(self, entry: Entry) -> Iterator[Cell]:
        """Yield the runs that an entry is the mean of."""
        for seed in self.study.seeds:
            yield Cell(entry.strategy, entry.alpha, seed)


def varied(study: Study, seeds: Sequence[int], rounds: int, values: Mapping[str, Scalar]) -> Study:
    """Return a study as a call varies it, which its page says.

    Parameters
    ----------
    study : Study
        As the catalogue has it.
    seeds : Sequence[int]
        Instead of its own; empty for these.
    rounds : int
        How long every run is; 0 for the study's own lengths.
    values : Mapping[str, Scalar]
        Overrides of the run configuration that all runs share.
    """
    if seeds:
        study = replace(study, seeds=seeds)
    if rounds:
        study = study.in_rounds(rounds)
    if len(study.seeds) != (wanted := len(study_of(study.item, "full").seeds)):
        study = study.saying(f"Number of seeds: {len(study.seeds)} instead of {wanted}.")
    other = {key: value for key, value in values.items() if key not in MAY_DIFFER}
    return study.saying(f"With {as_assignments(other)}.") if other else study


def plan_of(
    study: Study,
    values: Mapping[str, Scalar],
    defaults: Mapping[str, Scalar],
    client_cpus: int,
    client_gpus: float,
) -> Plan:
    """Return what is to be run for a study.

    Parameters
    ----------
    study : Study
        Which.
    values : Mapping[str, Scalar]
        Overrides of the run configuration that all runs share.
    defaults : Mapping[str, Scalar]
        The app's.
    client_cpus, client_gpus
        Of one client.

    Raises
    ------
    ConfigError
        If `values` sets what the study sets itself.
    """
    grids = {}
    for comparison in study.comparisons:
        setting = comparison.setting
        if own := [key for key in values if key in {*CELL_KEYS, *setting.values}]:
            raise ConfigError(
                f"{own[0]} is set by {study.item} itself; "
                f"--scale, --only, --seeds, --rounds and --output say what is run"
            )
        grids[setting.name] = Grid(
            strategies=tuple(comparison.strategies),
            alphas=tuple(comparison.alphas),
            seeds=tuple(study.seeds),
            values={**values, **setting.values},
            defaults=defaults,
            simulation=Simulation(setting.clients, client_cpus, client_gpus),
        )
    return Plan(study, grids)
