"""An update that no honest node would send."""

import pytest
from faults import edited, silent
from helpers import federation_of_nodes, identical, messages_of, own_data
from own_data_cases import add, in_round

from fedadb_app.errors import TrainingError
from fedadb_app.wire_arrays import to_state_dict

# --- an absurd update -----------------------------------------------------------------------


def test_an_absurd_update_is_refused_and_named(hospitals, caplog):
    """By default; the round is then as if that client had stayed silent."""
    honest, built = hospitals(run_name="honest"), hospitals()
    honest.grid.faults[101], built.grid.faults[101] = silent, add(10_000)
    honest.run()
    caplog.clear()
    built.run()
    assert [(r["clients"], r["failures"]) for r in built.rows] == [("2", "1")] * 2
    assert identical(built.strategy.global_model, honest.strategy.global_model)
    said = messages_of(caplog.records, "WARNING")[0]
    assert "client 101 failed: its update has the norm " in said
    assert "more than 100 times that of what it was sent" in said
    assert said.endswith("(max-relative-update=100)")


def test_absurd_running_statistics_are_refused_and_large_ones_are_not(hospitals, caplog):
    """A variance is a square: c^2 counts."""

    def grown(factor):
        return edited(
            lambda arrays: {n: a * factor if "running_var" in n else a for n, a in arrays.items()}
        )

    built = hospitals(strategy="fedgela", num_server_rounds=1)
    built.grid.faults |= {100: grown(50.0), 101: grown(1e12)}
    built.run()
    assert (built.rows[0]["clients"], built.rows[0]["failures"]) == ("2", "1")
    said = messages_of(caplog.records, "WARNING")[0]
    assert "client 101 failed: its change of running statistics has the norm " in said
    assert "more than 10000 times that of what it was sent" in said


def test_without_the_rule_it_is_taken(hospitals):
    built = hospitals(num_server_rounds=1, max_relative_update=0.0)
    built.grid.faults[101] = add(10_000)
    built.run()
    assert built.rows[0]["failures"] == "0"
    assert max(t.abs().max() for t in built.strategy.global_model.values()) > 100


@pytest.mark.parametrize("alone", [False, True])
def test_the_rule_needs_no_majority(federation, nodes, alone):
    """One or two hospitals can not say what is usual."""
    for node in (100, 102) if alone else (102,):
        del nodes[node]
    built = federation(nodes=nodes, **federation_of_nodes(), **{"num-server-rounds": 1})
    built.grid.faults[101] = add(10_000)
    if alone:
        with pytest.raises(TrainingError, match=r"0 of 1 clients .*max-relative-update"):
            built.run()
    else:
        built.run()
        assert (built.rows[0]["clients"], built.rows[0]["failures"]) == ("1", "1")


def test_the_bound_by_hand(hospitals):
    """||theta_k - theta_sent|| = c ||theta_sent|| is allowed, a little more is not."""
    built = hospitals(num_server_rounds=1, max_relative_update=2.0)
    for node, factor in zip(built.grid.nodes, (2.99, 3.01, -0.99), strict=True):
        scaled = {n: factor * t.numpy() for n, t in built.strategy.global_model.items()}
        built.grid.faults[node] = edited(lambda arrays, scaled=scaled: scaled)
    built.run()
    assert (built.rows[0]["clients"], built.rows[0]["failures"]) == ("2", "1")


def test_absurd_statistics_of_batches_count_too(federation, tmp_path):
    nodes = {k: own_data(tmp_path / f"{k}.npz", [0, 1, 2] * 2, seed=k) for k in (1, 2)}
    values = {"num-server-rounds": 1, "model": "resnet18"}
    built = federation(nodes=nodes, **federation_of_nodes(), **values)
    name = next(n for n in built.strategy.global_model if n.endswith("running_mean"))
    built.grid.faults[2] = edited(lambda arrays: {**arrays, name: arrays[name] + 1e6})
    built.run()
    assert (built.rows[0]["clients"], built.rows[0]["failures"]) == ("1", "1")


def test_an_update_is_measured_from_the_model_that_was_sent(hospitals):
    """FedACG sends a look-ahead model; clients that send it back have not moved at all."""
    built = hospitals(strategy="fedacg")
    sent = {}

    def echo(asked, reply):
        sent["arrays"] = asked.content["arrays"]
        back = {name: array.numpy() for name, array in asked.content["arrays"].items()}
        return edited(lambda arrays: back)(asked, reply)

    def stand_still() -> None:
        built.grid.faults = dict.fromkeys(built.grid.nodes, echo)
        run = built.strategy.run
        run.config = run.config.model_copy(update={"max_relative_update": 1e-9})

    before = {}
    in_round(built, 2, lambda: before.update(built.strategy.global_model) or stand_still())
    built.run()
    assert [row["failures"] for row in built.rows] == ["0", "0"]
    assert not identical(to_state_dict(sent["arrays"]), before)
