"""`fedadb tune`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedadb_app.assignments import app_defaults
from fedadb_app.cli.comparison_progress import show_runs
from fedadb_app.cli.console import fail, one_sentence, out
from fedadb_app.cli.options import (
    AppOption,
    ConfigOption,
    CpusOption,
    GpusOption,
    JobsOption,
    SupernodesOption,
    WorkersOption,
    numbers,
)
from fedadb_app.cli.runs import list_runs
from fedadb_app.cli.values import methods_of, parse_by_method, simulation_of
from fedadb_app.comparison.folder import check_settings, open_folder
from fedadb_app.comparison.running import Outcome
from fedadb_app.comparison.tuned import TUNED
from fedadb_app.errors import ConfigError
from fedadb_app.tuning.plan import Tuning, checked_tuning
from fedadb_app.tuning.running import run_tuning
from fedadb_app.tuning.search import needed_optuna


def tune(
    output: Annotated[Path, typer.Option(help="Folder of the tuning; continued if it exists.")],
    strategies: Annotated[str, typer.Option(help="Names with commas; all = all methods.")] = "all",
    trials: Annotated[
        int, typer.Option(min=1, help="Of each method; the first has its default values.")
    ] = 8,
    rungs: Annotated[
        str,
        typer.Option(
            help="Rounds with commas after which a trial that is worse than the median ends; "
            "none = no trial ends early; default: a quarter and half of the rounds."
        ),
    ] = "",
    seed: Annotated[int, typer.Option(min=0, help="Of all runs, and of what is tried.")] = 0,
    alpha: Annotated[
        float | None, typer.Option(help="Of all runs; default: the run-config's.")
    ] = None,
    run_config: ConfigOption = None,
    num_supernodes: SupernodesOption = None,
    client_cpus: CpusOption = 1,
    client_gpus: GpusOption = 0.0,
    workers: WorkersOption = 0,
    jobs: JobsOption = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs, and how long they may take at most.")
    ] = False,
    app: AppOption = Path(),
) -> None:
    """Choose the values of every method on validation images, with the same budget for all."""
    with one_sentence():
        values, own = parse_by_method(run_config)
        if own:
            raise ConfigError(
                f"{next(iter(own))} has values of its own in --run-config, which tune is to "
                f"choose: give values to all methods, without a name before them"
            )
        simulation = simulation_of(
            num_supernodes, client_cpus, client_gpus, {**app_defaults(app), **values}, workers
        )
        simulation.shared_by(jobs)
        tuning = checked_tuning(
            app,
            values,
            methods_of(strategies),
            alpha,
            seed,
            simulation,
            trials,
            _rungs(rungs),
        )
        folder = output.expanduser().absolute()
        planned = replace(
            tuning,
            runs=tuple(tuning.trial(m, n) for n in range(trials) for m in tuning.strategies),
        )
        if dry_run:
            check_settings(folder, tuning)
            list_runs(folder, planned, jobs)
            return
        needed_optuna()
        with open_folder(folder, tuning):
            outcomes = show_runs(
                folder, planned, lambda watch: run_tuning(folder, tuning, app, watch, jobs)
            )
        _conclude(folder, tuning, outcomes)


def _rungs(text: str) -> list[int] | None:
    """Return what ``--rungs`` says; None for the tuning's own."""
    if not text:
        return None
    return [] if text == "none" else numbers("--rungs", text, int)


def _conclude(folder: Path, tuning: Tuning, outcomes: Sequence[Outcome]) -> None:
    """Say what was chosen, and what of it is lacking."""
    if lacking := [o for o in outcomes if o.reading is None and not o.failed]:
        fail(f"{len(lacking)} trials could not be run or read; run the same command again")
    failed = [o.cell for o in outcomes if o.failed]
    if failed:
        names = ", ".join(cell.name for cell in failed)
        out.print(f"{len(failed)} trials failed and count as the worst: {names}", soft_wrap=True)
    counts = Counter(cell.strategy for cell in failed)
    if without := [name for name, count in counts.items() if count == tuning.trials]:
        fail(
            f"every trial of {', '.join(without)} has failed, so {folder / TUNED} has no values "
            f"for it; {folder / 'tuning.md'} says why each did"
        )
    out.print(f"chosen values: {folder / TUNED}", soft_wrap=True, markup=False)
