"""What is tried: from each method's own space, a function of the seed and of what is known."""

import builtins
import math
import statistics
from dataclasses import replace

import pytest
from helpers import REPOSITORY
from tuning.cells import ROUNDS, peak

from fedadb_app.assignments import app_defaults
from fedadb_app.errors import ConfigError
from fedadb_app.tuning.plan import BATCH, space_of
from fedadb_app.tuning.search import Tried, chosen, must_reach, needed_optuna, next_batch
from strategies.registry import METHODS, STRATEGIES, read_run_config
from strategies.tunable import OneOf, Range


def tried_all(tuning, method, batches):
    """Trials of so many batches whose accuracy is that of `peak`, after half and all rounds."""
    tried = []
    for _ in range(batches):
        for trial in next_batch(tuning, method, tried):
            own = dict(trial.own)
            values = {key: own[key] for key in space_of(method)}
            best = {ROUNDS // 2: peak(own) / 2, ROUNDS: peak(own)}
            tried.append(Tried(trial, values, best))
    return tried


# --- spaces ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_a_methods_space_is_of_its_own_keys_and_holds_its_defaults(name):
    assert STRATEGIES[name].tunable.keys() <= METHODS[name].params.defaults().keys()
    defaults = app_defaults(REPOSITORY)
    for key, of in space_of(name).items():
        assert defaults[key] in of, key


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("end", [0, -1])
def test_a_run_takes_both_ends_of_every_space(name, end):
    values = {
        key: of.values[end] if isinstance(of, OneOf) else (of.low, of.high)[end]
        for key, of in space_of(name).items()
    }
    read_run_config({"strategy": name, **values})


@pytest.mark.parametrize(
    ("of", "value", "inside"),
    [
        (Range(0.1, 1.0), 0.1, True),
        (Range(0.1, 1.0), 1, True),
        (Range(0.1, 1.0), 1.01, False),
        (Range(0.1, 1.0), math.nan, False),
        (Range(0.1, 1.0), "0.5", False),
        (OneOf((1, 2)), 2, True),
        (OneOf((1, 2)), 3, False),
    ],
)
def test_what_is_inside(of, value, inside):
    assert (value in of) == inside


# --- suggestions ----------------------------------------------------------------------------


def test_the_first_trial_has_the_values_that_nobody_tuned(tuning):
    first, *others = next_batch(tuning, "fedprox", [])
    assert dict(first.own) == {"learning-rate": 0.01, "fedprox.mu": 0.01}
    assert len(others) == BATCH - 1
    louder = replace(tuning, values={**tuning.values, "learning-rate": 0.5})  # outside the space
    first, *_ = next_batch(louder, "fedprox", [])
    assert dict(first.own)["learning-rate"] == 0.5
    tried = [
        Tried(t, {key: dict(t.own)[key] for key in space_of("fedprox")}, {8: 50.0})
        for t in next_batch(louder, "fedprox", [])
    ]
    assert len(next_batch(louder, "fedprox", tried)) == BATCH


def test_what_is_tried_lies_in_the_space_with_three_digits(tuning):
    for t in tried_all(tuning, "fedprox", 2):
        for key, of in space_of("fedprox").items():
            assert t.values[key] in of
            assert t.values[key] == float(f"{t.values[key]:.3g}")


def test_suggestions_follow_from_the_seed_the_method_and_what_is_known(tuning):
    tried = tried_all(tuning, "fedprox", 1)
    batch = next_batch(tuning, "fedprox", tried)
    assert next_batch(tuning, "fedprox", tried) == batch
    alone = replace(tuning, strategies=("fedprox",))
    assert next_batch(alone, "fedprox", tried) == batch  # whatever else is tuned
    others = [replace(t, best={ROUNDS: 90.0 - t.value}) for t in tried]
    assert next_batch(tuning, "fedprox", others) != batch
    assert next_batch(replace(tuning, seeds=(1,)), "fedprox", tried) != batch


def test_the_budget_is_what_was_asked_for(tuning):
    sizes = [len(next_batch(tuning, "fedavg", tried_all(tuning, "fedavg", n))) for n in range(3)]
    assert sizes == [BATCH, BATCH, 10 - 2 * BATCH]


def test_later_trials_are_better_than_random_ones(tuning):
    """A learning rate drawn at random gives 73 % on average: 90 - 12 E|ln(eta / 0.03)|."""
    many = replace(tuning, trials=40)
    values = [t.value for t in tried_all(many, "fedavg", 10)]
    assert statistics.mean(values[20:]) > 78
    assert max(values) > 89.0  # the best possible is 90, the default's 76.8


def test_of_an_error_less_is_sought(tuning):
    """The same values, as an error: what was worst becomes best."""
    error = replace(tuning, values={**tuning.values, "select-by": "val-brier"}, trials=40)
    tried = [replace(t, best={ROUNDS: t.value}) for t in tried_all(error, "fedavg", 10)]
    assert statistics.median(t.value for t in tried[20:]) < statistics.median(
        t.value for t in tried_all(replace(tuning, trials=40), "fedavg", 10)[20:]
    )
    assert chosen(error, tried).value == min(t.value for t in tried)


# --- the median rule and the choice -----------------------------------------------------------


def of(tuning, number, best, **more):
    return Tried(tuning.trial("fedavg", number), {"learning-rate": 0.01}, best, **more)


def test_a_trial_must_reach_the_median_of_those_before_it(tuning):
    """Rungs are rounds 2 and 4 of eight; the third trial was ended in round 2, the fourth failed.

    By round 2 they had 10, 20 and 15: median 15; by round 4 two had 30 and 41: median 35.5.
    """
    assert tuning.rungs == (2, 4)
    tried = [
        of(tuning, 0, {1: 5.0, 2: 10.0, 4: 30.0, 8: 60.0}),
        of(tuning, 1, {1: 20.0, 2: 20.0, 5: 41.0, 8: 50.0}),
        of(tuning, 2, {2: 15.0}, ended_early=True),
        of(tuning, 3, {}, reason="diverged"),
    ]
    assert must_reach(tuning, tried) == "2:15,4:35.5"
    assert must_reach(tuning, tried[3:]) == ""
    assert must_reach(replace(tuning, rungs=()), tried) == ""
    for trial in next_batch(tuning, "fedavg", tried):
        assert dict(trial.own)["must-reach"] == "2:15,4:35.5"
    config, _, _ = read_run_config({**tuning.effective, "must-reach": must_reach(tuning, tried)})
    assert config.rungs == {2: 15.0, 4: 35.5}


def test_the_best_whole_trial_is_chosen_of_equal_ones_the_first(tuning):
    tried = [
        of(tuning, 0, {8: 60.0}),
        of(tuning, 1, {8: 60.0}),
        of(tuning, 2, {2: 99.0}, ended_early=True),
        of(tuning, 3, {}, reason="diverged"),
    ]
    assert chosen(tuning, tried) is tried[0]
    assert chosen(tuning, tried[2:]) is None


def test_without_optuna_there_is_a_sentence(monkeypatch):
    found = builtins.__import__

    def lacking(name, *rest):
        if name == "optuna":
            raise ImportError(name)
        return found(name, *rest)

    monkeypatch.setattr(builtins, "__import__", lacking)
    with pytest.raises(ConfigError, match=r'pip install "fedadb-app\[tune\]"'):
        needed_optuna()
