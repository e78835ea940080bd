"""Nodes with their own data: whose claims count, and what their ids are worth."""

import numpy as np
import pytest
from fake_grid import FakeGrid, server_context
from faults import edited
from helpers import federation_of_nodes, identical, messages_of, own_data, read_json
from own_data_cases import HELD_OUT, HOSPITALS, in_round

import server_app
from fedadb_app.aggregation import weighted_mean
from fedadb_app.privacy import epsilon_spent
from fedadb_app.wire_arrays import to_state_dict

# --- whose claims count ---------------------------------------------------------------------


@pytest.mark.parametrize("claimed", [31, 33, 10**9, 0])
def test_a_client_must_claim_what_it_stated(hospitals, caplog, claimed):
    """It held 32 training samples when it was asked."""
    built = hospitals(num_server_rounds=1)
    built.grid.faults[100] = edited(metrics=lambda m: {**m, "num-examples": claimed})
    built.run()
    assert (built.rows[0]["clients"], built.rows[0]["failures"]) == ("2", "1")
    (said,) = messages_of(caplog.records, "WARNING")
    assert f"client 100 failed: num-examples={claimed}, but this client holds 32" in said
    assert "left out until it has answered anew" in said


def test_data_that_grow_during_a_run_are_taken_with_their_new_size(
    hospitals, tmp_path, clock, caplog
):
    built = hospitals(num_server_rounds=3)
    in_round(built, 2, lambda: own_data(tmp_path / "hospital-0.npz", [0, 1, 2, 3] * 20, seed=5))
    clock.now += 60
    built.run()
    assert [(r["clients"], r["failures"]) for r in built.rows] == [
        ("3", "0"),
        ("2", "1"),
        ("3", "0"),
    ]
    assert built.strategy.clients.counts[100].train == 64
    assert read_json(built.folder.path / "partition.json")["clients"][0]["size"] == 64


def test_data_that_break_during_a_run_and_are_mended(hospitals, tmp_path, clock, caplog):
    built = hospitals(num_server_rounds=5)
    file = tmp_path / "hospital-0.npz"

    def happen(t: int) -> None:
        clock.now += 60
        if t == 2:
            file.rename(tmp_path / "away.npz")
        if t == 4:
            (tmp_path / "away.npz").rename(file)

    built.grid.before_train = happen
    built.run()
    assert [(r["clients"], r["failures"]) for r in built.rows] == [
        ("3", "0"),
        ("2", "1"),  # drawn, refused
        ("2", "0"),  # not drawn
        ("2", "0"),
        ("3", "0"),
    ]
    said = messages_of(caplog.records, "WARNING")
    assert len(said) == 1
    assert "round 2: client 100 failed: its data cannot be used; its own log says why" in said[0]
    assert clock.naps == 0


def test_a_node_that_is_refused_is_named_and_the_others_go_on(federation, nodes, caplog):
    nodes[100] = {"data-path": "/nowhere/at/all"}
    built = federation(nodes=nodes, **federation_of_nodes(), **{"num-server-rounds": 1})
    built.run()
    assert (built.rows[0]["clients"], built.rows[0]["failures"]) == ("2", "0")
    (said,) = messages_of(caplog.records, "WARNING")
    assert said == "node 100 is left out: its data cannot be used; its own log says why"


def test_a_late_joiner_stands_in_the_manifest(hospitals, tmp_path):
    built = hospitals(num_server_rounds=2)
    late = own_data(tmp_path / "late.npz", [0, 1] * 5)
    in_round(built, 1, lambda: built.grid.nodes.update({200: late}) or built.grid.nodes.pop(102))
    built.run()
    clients = read_json(built.folder.path / "partition.json")["clients"]
    assert [c["client"] for c in clients] == [100, 101, 102, 200]  # whoever took part


# --- equal weights to equal claims ----------------------------------------------------------


def test_the_model_is_the_mean_by_stated_samples(hospitals):
    built = hospitals(num_server_rounds=1)
    built.run()
    received = [m for m in built.grid.received if m.metadata.message_type == "train"]
    models = [to_state_dict(m.content["arrays"]) for m in received]
    sizes = [len(labels) - out for labels, out in zip(HOSPITALS, HELD_OUT, strict=True)]
    expected = weighted_mean(models, [n / sum(sizes) for n in sizes])
    assert identical(built.strategy.global_model, expected)


# --- what is known of nodes when ids change ---------------------------------------------------


def test_a_node_that_outweighs_all_others_is_named(federation, tmp_path, caplog):
    sizes = {100: 6, 101: 6, 102: 40}
    nodes = {n: own_data(tmp_path / f"{n}.npz", [0, 1] * (size // 2)) for n, size in sizes.items()}
    own = {**federation_of_nodes(), "evaluate": "none", "num-server-rounds": 1}
    federation(nodes=nodes, **own).run()
    said = messages_of(caplog.records, "WARNING")
    assert said == ["node 102 takes part with 40 samples, 77 % of all"]


@pytest.mark.parametrize("same", [True, False])
def test_a_resumed_run_knows_the_nodes_of_the_run_before(values, nodes, tmp_path, caplog, same):
    own = {**values, **federation_of_nodes(), "num-server-rounds": 3, "checkpoint-every": 1}

    def interrupt() -> None:
        raise KeyboardInterrupt

    grid = FakeGrid(own, dict(nodes))
    grid.before_train = lambda t: t == 3 and interrupt()
    with pytest.raises(KeyboardInterrupt):
        server_app.app(grid, server_context(own))
    if not same:
        nodes[200] = nodes.pop(102)
        nodes[101] = own_data(tmp_path / "more.npz", [0, 1] * 10)
    caplog.clear()
    before = f"{own['output-dir']}/run"
    next_run = {**own, "run-name": "next", "resume-from": before}
    server_app.app(FakeGrid(next_run, nodes), server_context(next_run, 8))

    said = [w for w in messages_of(caplog.records, "WARNING") if w.startswith("resume-from")]
    named = f'resume-from="{before}": nodes'
    assert said == (
        []
        if same
        else [
            f"{named} not connected now, or under another id: 102",
            f"{named} not of that run, or under another id: 200",
            f"{named} holding another number of samples than in that run: 101",
        ]
    )
    folder = tmp_path / "runs" / "next"
    known = [client["client"] for client in read_json(folder / "partition.json")["clients"]]
    assert known == ([100, 101, 102] if same else [100, 101, 102, 200])
    assert read_json(folder / "summary.json")["clients"] == len(known)


def test_every_round_costs_privacy_where_a_node_may_return_under_another_id(hospitals):
    """Drawn in one round each by its id, a hospital of two ids was drawn in both."""
    private = {"privacy": "central", "clipping_norm": 0.01, "evaluate": "none"}
    built = hospitals(fraction_train=0.3, **private)
    built.run()
    assert len(set(built.strategy.clients.ledger.rounds_drawn)) == 2
    for t, row in enumerate(built.rows, start=1):
        assert float(row["epsilon"]) == pytest.approx(
            epsilon_spent(built.strategy.run.config, t), 1e-4
        )


@pytest.mark.parametrize(("size", "failures"), [(1.0, "0"), (1e6, "1")])
def test_with_local_noise_the_absurd_is_what_noise_cannot_be(hospitals, size, failures):
    built = hospitals(num_server_rounds=1, privacy="local", clipping_norm=1e-3, evaluate="none")
    built.grid.faults[101] = edited(
        lambda arrays: {n: a + np.float32(size * 1e-6) for n, a in arrays.items()}
    )
    built.run()
    assert built.rows[0]["failures"] == failures
