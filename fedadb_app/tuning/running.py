"""Running a tuning, batch by batch, and going on with one that was interrupted."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fedadb_app.comparison.running import Outcome, Watch, run_missing
from fedadb_app.errors import DataError
from fedadb_app.metrics import BETTER, missed_rung
from fedadb_app.runs.atomic import replace as write
from fedadb_app.runs.reader import read_files
from fedadb_app.runs.record import METRICS
from fedadb_app.runs.text_files import read
from fedadb_app.tuning.plan import BATCH, Trial, Tuning, space_of
from fedadb_app.tuning.results import write_chosen, write_trials
from fedadb_app.tuning.search import Tried, next_batch
from strategies.registry import read_run_config


def run_tuning(
    folder: Path, tuning: Tuning, app: Path, watch: Watch, jobs: int
) -> Iterator[Outcome]:
    """Run all trials, yielding each one's outcome as it is known, and write what was chosen.

    One batch of every method at a time. A trial whose run has failed counts as the worst, is not
    run again, and ends nothing. One that could not be run or read ends the tuning with its batch,
    since what later ones try depends on it.

    Parameters
    ----------
    folder : Path
        Of the tuning, which the caller has opened.
    tuning : Tuning
        What it consists of.
    app : Path
        Checkout of the app.
    watch : Watch
        Waits for a run.
    jobs : int
        Runs side by side.
    """
    tried: dict[str, list[Tried]] = {name: [] for name in tuning.strategies}
    for _ in range(0, tuning.trials, BATCH):
        batch = [
            trial for name, before in tried.items() for trial in next_batch(tuning, name, before)
        ]
        found: dict[Trial, Tried] = {}
        for outcome, ended in _run(folder, replace(tuning, runs=tuple(batch)), app, watch, jobs):
            if ended is not None:
                found[ended.trial] = ended
            yield outcome
        if len(found) < len(batch):
            return
        for trial in batch:  # in their order, whichever ended first
            tried[trial.strategy].append(found[trial])
        write_trials(folder, tuning, tried)
    write_chosen(folder, tuning, tried)


def _run(
    folder: Path, tuning: Tuning, app: Path, watch: Watch, jobs: int
) -> Iterator[tuple[Outcome, Tried | None]]:
    """Run some trials; yield each one's outcome, and how it counts unless it is to be run again."""
    waiting: list[Trial] = []
    for trial in tuning.runs:
        reason = read(_failed(folder, trial), str.strip)
        if reason is None:
            waiting.append(trial)
        else:
            yield Outcome(trial, None, reason, failed=True), _tried(trial, reason=reason)
    for outcome in run_missing(folder, replace(tuning, runs=tuple(waiting)), app, watch, jobs):
        assert isinstance(outcome.cell, Trial)
        trial = outcome.cell
        if outcome.failed:
            write(_failed(folder, trial), f"{outcome.reason}\n".encode())
            yield outcome, _tried(trial, reason=outcome.reason)
        elif outcome.reading is None:
            yield outcome, None
        else:
            try:
                ended = read_trial(folder, tuning, trial)
            except DataError as error:
                yield Outcome(trial, None, str(error)), None
            else:
                yield outcome if ended.best else Outcome(trial, None, ended.reason, True), ended


def read_trial(folder: Path, tuning: Tuning, trial: Trial) -> Tried:
    """Return what the complete run of a trial says.

    Raises
    ------
    DataError
        If a file that says it cannot be read.
    """
    files = read_files(folder / "runs" / trial.name)
    if fault := files.faults.get(METRICS):
        raise DataError(fault)
    better, so_far = BETTER[tuning.metric], math.nan
    best: dict[int, float] = {}
    for number, value in files.metric("val", tuning.metric).items():
        if math.isnan(so_far) or better * (value - so_far) > 0:
            so_far = value
        best[number] = so_far
    if not best:
        return _tried(trial, reason=f"val-{tuning.metric} was never known")
    config, _, _ = read_run_config({**tuning.defaults, **tuning.overrides(trial)})
    last = max(best)
    missed = missed_rung(config.rungs, last, so_far, better)
    early = missed is not None and last < config.num_server_rounds
    return _tried(trial, best, ended_early=early)


def _tried(
    trial: Trial, best: dict[int, float] | None = None, ended_early: bool = False, reason: str = ""
) -> Tried:
    own = dict(trial.own)
    values = {key: own[key] for key in space_of(trial.strategy)}
    return Tried(trial, values, best or {}, ended_early, reason)


def _failed(folder: Path, trial: Trial) -> Path:
    """Return where it is kept that the run of a trial has failed, which it would do again."""
    return folder / "runs" / f"{trial.name}.failed.txt"
