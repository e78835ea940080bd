"""`fedadb tune`: equal budgets, the same choice whatever interrupts it, and what it leaves."""

import shutil
import tomllib
from dataclasses import replace

import pytest
from helpers import REPOSITORY, read_csv
from tuning.cells import SHARED, Cells, peak, run

from fedadb_app.cli.values import parse_by_method
from fedadb_app.flower_run import Simulation
from fedadb_app.tuning.plan import checked_tuning

FILES = ("trials.csv", "tuned.toml", "tuning.md")


def left(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


def test_every_method_has_the_same_number_of_trials_and_never_ends_worse(whole):
    rows = read_csv(whole / "trials.csv")
    for method in ("fedavg", "fedprox"):
        of_method = [row for row in rows if row["method"] == method]
        assert [row["trial"] for row in of_method] == [str(n) for n in range(10)]
        assert all(int(row["rounds"]) <= 8 for row in of_method)
        values = {float(row["value"]) for row in of_method}
        (best,) = [row for row in of_method if row["chosen"]]
        assert float(best["value"]) == max(values) >= float(of_method[0]["value"])
        assert any(row["state"] == "ended" for row in of_method[4:])
        assert all(row["state"] == "complete" for row in of_method[:4])


def test_a_trial_that_ended_early_was_below_the_median_of_those_before(whole):
    rows = [row for row in read_csv(whole / "trials.csv") if row["method"] == "fedavg"]
    before = sorted(float(row["best_by_2"]) for row in rows[:4])
    median = (before[1] + before[2]) / 2
    for row in rows[4:8]:
        assert (row["rounds"] == "2") == (float(row["best_by_2"]) < median)


def test_the_chosen_values_are_a_file_for_a_comparison(whole):
    shared, own = parse_by_method([str(whole / "tuned.toml")])
    assert not shared
    chosen = {row["method"]: row for row in read_csv(whole / "trials.csv") if row["chosen"]}
    assert own.keys() == chosen.keys()
    for method, row in chosen.items():
        assert own[method].keys() == (
            {"learning-rate"} if method == "fedavg" else {"learning-rate", "fedprox.mu"}
        )
        assert peak(own[method]) == pytest.approx(float(row["value"]), abs=1e-3)
    made_for = tomllib.loads((whole / "tuned.toml").read_text())["tuned-for"]
    assert (made_for["dataset"], made_for["num-supernodes"]) == ("digits", 4)


@pytest.mark.parametrize("after", [2, 5, 13])
def test_interrupted_with_two_jobs_it_chooses_the_same(monkeypatch, tmp_path, tuning, whole, after):
    cells = Cells(monkeypatch)
    cells.stop_after, cells.pause = after, 0.004
    with pytest.raises(KeyboardInterrupt):
        run(cells, tmp_path / "again", tuning, jobs=2)
    assert not (tmp_path / "again" / "tuned.toml").exists()
    cells.stop_after = 1000
    run(cells, tmp_path / "again", tuning, jobs=2)
    assert left(tmp_path / "again") == left(whole)


def test_nothing_that_is_complete_is_run_again(monkeypatch, whole, tuning):
    cells, before = Cells(monkeypatch), left(whole)
    assert len(run(cells, whole, tuning)) == 20
    assert not cells.started
    assert left(whole) == before


# --- runs that fail ---------------------------------------------------------------------------


def test_a_failed_trial_counts_as_the_worst_and_is_not_run_again(monkeypatch, tmp_path, tune):
    ends = {"fedavg-trial001": "failed", "fedprox-trial000": "failed"}
    cells = Cells(monkeypatch, ends)
    arguments = ["tune", "--output", str(tmp_path), "--trials", "5", *SHARED]
    result = tune(cells, *arguments)
    assert result.exit_code == 0, result.output
    shown = " ".join(result.output.split())
    assert "2 trials failed and count as the worst: fedavg-trial001, fedprox-trial000" in shown
    rows = {(r["method"], r["trial"]): r for r in read_csv(tmp_path / "trials.csv")}
    failed = rows["fedavg", "1"]
    assert (failed["state"], failed["value"], failed["chosen"]) == ("failed", "", "")
    assert "weights are not finite" in failed["reason"]
    assert "* fedavg-trial001: " in (tmp_path / "tuning.md").read_text()
    before, cells.ends = left(tmp_path), {}
    assert tune(cells, *arguments).exit_code == 0
    assert cells.started.count("fedavg-trial001") == 1
    assert left(tmp_path) == before


def test_if_all_trials_of_a_method_fail_it_ends_with_a_sentence(monkeypatch, tmp_path, tune):
    cells = Cells(monkeypatch, {f"fedavg-trial{n:03}": "failed" for n in range(5)})
    result = tune(cells, "tune", "--output", str(tmp_path), "--trials", "5", *SHARED)
    assert result.exit_code == 1
    assert "every trial of fedavg has failed, so" in " ".join(result.output.split())
    _, own = parse_by_method([str(tmp_path / "tuned.toml")])
    assert own.keys() == {"fedprox"}


@pytest.mark.parametrize("end", ["lost", "without nodes"])
def test_a_run_that_was_lost_ends_the_tuning_and_is_run_again(monkeypatch, tmp_path, tune, end):
    cells = Cells(monkeypatch, {"fedavg-trial002": end})
    arguments = ["tune", "--output", str(tmp_path), "--trials", "5", *SHARED]
    result = tune(cells, *arguments)
    assert result.exit_code == 1
    assert "1 trials could not be run or read; run the same command" in " ".join(
        result.output.split()
    )
    assert len(cells.started) == 8  # its batch, and no later one
    assert not (tmp_path / "tuned.toml").exists()
    cells.ends.clear()
    assert tune(cells, *arguments).exit_code == 0
    assert len(cells.started) == 11


def test_a_metric_that_was_never_known_is_a_failed_trial(monkeypatch, tmp_path, tuning):
    cells = Cells(monkeypatch)
    auc = replace(tuning, values={**tuning.values, "select-by": "val-auc"}, trials=1)
    outcomes = run(cells, tmp_path, auc)
    assert all(o.failed and o.reason == "val-auc was never known" for o in outcomes)


def test_a_damaged_file_of_a_trial_is_named(monkeypatch, tmp_path, whole, tuning):
    folder = shutil.copytree(whole, tmp_path / "damaged")
    (folder / "runs" / "fedavg-trial001" / "metrics.csv").write_text("round\n1\n")
    bad = [o for o in run(Cells(monkeypatch), folder, tuning) if o.reading is None]
    assert [o.cell.name for o in bad] == ["fedavg-trial001"]
    assert not bad[0].failed
    assert "metrics.csv cannot be read" in bad[0].reason


# --- the command ------------------------------------------------------------------------------


def test_a_dry_run_lists_every_trial_and_writes_nothing(monkeypatch, tmp_path, tune):
    folder = tmp_path / "t"
    result = tune(
        Cells(monkeypatch), "tune", "--output", str(folder), "--trials", "3", "--dry-run", *SHARED
    )
    assert result.exit_code == 0, result.output
    assert "fedprox-trial002" in result.output
    assert "6 of 6 runs are missing" in result.output
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "these runs have none: set validation="),
        (["-c", 'validation="merged"'], "these runs have none"),
        (["-c", 'validation="0.1" select-by="val-loss"'], 'select-by="val-loss" is not allowed'),
        (["-c", 'validation="0.1"', "-c", "fedavg: momentum=0.5"], "fedavg has values of its own"),
        (["-c", 'validation="0.1" must-reach="1:50"'], "must-reach is set by the tuning itself"),
        (["-c", 'validation="0.1"', "--strategies", "local"], "local is a reference"),
        (["-c", 'validation="0.1"', "--strategies", "fedavgg"], 'did you mean "fedavg"'),
        (["-c", 'validation="0.1"', "--rungs", "20"], "--rungs 20: expected rising rounds from 1"),
        (["-c", 'validation="0.1"', "--rungs", "5,3"], "--rungs 5,3: expected rising rounds"),
        (["-c", 'validation="0.1"', "--rungs", "0"], "--rungs 0: expected rising"),
        (["-c", 'validation="0.1"', "--rungs", "x"], "--rungs x: expected numbers"),
    ],
)
def test_a_mistake_gets_one_sentence_before_the_first_run(
    monkeypatch, tmp_path, tune, arguments, said
):
    cells = Cells(monkeypatch)
    result = tune(cells, "tune", "--output", str(tmp_path / "t"), *arguments)
    assert result.exit_code == 1
    assert said in " ".join(result.output.split())
    assert not cells.started
    assert not (tmp_path / "t").exists()


def test_another_budget_or_seed_is_another_tuning(monkeypatch, tmp_path, tune):
    cells = Cells(monkeypatch)
    arguments = ["tune", "--output", str(tmp_path), *SHARED, "--trials", "1"]
    assert tune(cells, *arguments).exit_code == 0
    for other in (["--trials", "2"], ["--seed", "1"], ["--rungs", "none"], ["--alpha", "1"]):
        result = tune(cells, *arguments, *other)
        assert result.exit_code == 1
        key = other[0].removeprefix("--")
        assert f"holds a tuning with other settings (search.{key})" in " ".join(
            result.output.split()
        )


def test_rungs_are_a_quarter_and_half_of_the_rounds_unless_said():
    def rungs(rounds, asked=None):
        values = {"validation": "0.1", "num-server-rounds": rounds}
        return checked_tuning(REPOSITORY, values, ["fedavg"], None, 0, Simulation(), 1, asked).rungs

    assert [rungs(n) for n in (1, 2, 3, 8, 40)] == [(), (1,), (1, 2), (2, 4), (10, 20)]
    assert rungs(40, [5]) == (5,)
    assert rungs(40, []) == ()
