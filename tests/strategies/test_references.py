"""Training in one place, and each client alone: what the numbers of methods are held against."""

import numpy as np
import pytest
import torch
from helpers import federation_of_nodes, identical, read_csv

from fedadb_app.data.clients import PartitionClaim, client_data, validation_part
from fedadb_app.errors import ConfigError
from fedadb_app.local_training import LocalTask, Trainer
from strategies.centralised import all_images
from strategies.evaluation import on_test_set
from strategies.registry import METHODS, REFERENCES, STRATEGIES, method_title, read_run_config

STEPS = {"batch-size": 20, "learning-rate": 0.05}


def diagnostics(built):
    rows = read_csv(built.folder.path / "diagnostics.csv")
    return {(int(row["round"]), row["name"]): float(row["value"]) for row in rows}


def test_they_are_strategies_and_no_methods():
    assert list(REFERENCES) == ["centralised", "local"]
    assert not REFERENCES.keys() & METHODS.keys()
    assert STRATEGIES.keys() == METHODS.keys() | REFERENCES.keys()
    assert [method_title(name) for name in REFERENCES] == ["Centralised", "Local"]


# --- in one place ---------------------------------------------------------------------------


@pytest.mark.parametrize("augment", [False, True])
def test_with_one_client_it_is_fedavg_bitwise(federation, augment):
    ends = []
    for strategy in ("fedavg", "centralised"):
        built = federation(1, strategy=strategy, augment=augment, **STEPS, **{"run-name": strategy})
        built.run()
        ends.append(built)
    assert identical(*(built.strategy.global_model for built in ends))
    assert ends[0].rows[1]["accuracy"] == ends[1].rows[1]["accuracy"]


def test_it_trains_as_many_images_as_the_participants_and_asks_nobody(federation, monkeypatch):
    """E = 2 passes a round over n = the sizes of the two of eight clients that are drawn."""
    seen: list[list[int]] = []
    backward = Trainer.backward

    def watched(self, batch):
        seen.append(self.task.data.positions[batch.indices].tolist())
        return backward(self, batch)

    monkeypatch.setattr(Trainer, "backward", watched)
    values = {"fraction-train": 0.25, "local-epochs": 2, "partition": "dirichlet", **STEPS}
    plain = federation(8, **values, **{"run-name": "plain"})
    plain.run()
    by_round = [sum(map(len, seen))]
    seen.clear()
    built = federation(8, strategy="centralised", **values)
    built.run()
    assert sum(map(len, seen)) == by_round[0]
    assert built.grid.trained() == []
    assert [(r["clients"], r["failures"], r["bytes_down"]) for r in built.rows] == [
        ("0", "0", "0")
    ] * 2
    held = built.strategy.clients.counts
    sizes = [held[k].train for k in range(8)]
    assert sum(sizes) == 400
    drawn = {row for batch in seen for row in batch}
    assert len(drawn) > max(sizes), "images of more than the clients drawn"
    last = next(i for i, batch in enumerate(seen) if len(batch) < 20)
    first_pass = [row for batch in seen[: last + 1] for row in batch]
    assert len(first_pass) == len(set(first_pass)), "none twice in a pass"


def test_the_pool_is_every_clients_training_images(federation):
    built = federation(3, strategy="centralised", evaluate="both")
    config = built.strategy.run.config
    pool = all_images(config, 3, 7)
    parts = [client_data(config, PartitionClaim(k, 3), pool.device) for k in range(3)]
    rows = [set(part.train.positions.tolist()) for part in parts]
    assert set(pool.positions.tolist()) == set().union(*rows)
    assert not set(pool.positions.tolist()) & set(parts[0].held_out.positions.tolist())
    assert len(pool) == 7
    labels = built.strategy.run.dataset.train_labels
    assert pool.labels.tolist() == labels[pool.positions.numpy()].tolist()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            federation_of_nodes(),
            'strategy="centralised" is not possible where nodes have their own',
        ),
        ({"robust": "median"}, 'robust="median" is not possible with strategy="centralised"'),
        ({"privacy": "central"}, 'privacy="central" is not possible with strategy="centralised"'),
    ],
)
def test_what_cannot_be_in_one_place_is_refused_in_one_sentence(values, said):
    with pytest.raises(ConfigError, match=said) as refusal:
        read_run_config({"strategy": "centralised", **values})
    assert "\n" not in str(refusal.value)


# --- each alone -----------------------------------------------------------------------------


def test_a_clients_model_is_its_own_and_goes_on(federation):
    """Twin: each client trained by hand, its second round from where its first ended."""
    built = federation(2, strategy="local", **STEPS)
    before = {n: t.clone() for n, t in built.strategy.global_model.items()}
    built.run()
    run = built.strategy.run
    assert identical(built.strategy.global_model, before)
    accuracies = []
    for k in range(2):
        model = run.model
        model.load_state_dict(before)
        for t in (1, 2):
            data = client_data(run.config, PartitionClaim(k, 2), torch.device("cpu")).train
            rate = run.config.learning_rate_at(t)
            task = LocalTask(k, t, 2, rate, run.config, data)
            Trainer(model, task, run.params).train()
        state = {n: t.clone() for n, t in model.state_dict().items()}
        accuracies.append(on_test_set(run, state, run.dataset).accuracy)
    assert float(built.rows[1]["accuracy"]) == pytest.approx(np.mean(accuracies), abs=0.005)
    found = diagnostics(built)
    assert found[2, "local_clients"] == 2
    assert found[2, "accuracy_worst_client"] == pytest.approx(min(accuracies), abs=1e-3)
    assert found[2, "accuracy_best_client"] == pytest.approx(max(accuracies), abs=1e-3)
    expected = np.std(accuracies, ddof=1)
    assert found[2, "accuracy_sd_of_clients"] == pytest.approx(expected, abs=1e-3)


def test_who_has_not_been_drawn_does_not_count_and_who_has_counts_on(federation):
    """One of eight clients a round: the mean is over those that have trained so far."""
    built = federation(8, strategy="local", **{"fraction-train": 0.125}, **STEPS)
    built.run()
    trained = {m.metadata.dst_node_id for m in built.grid.trained()}
    found = diagnostics(built)
    assert found[1, "local_clients"] == 1
    assert found[2, "local_clients"] == len(trained)
    assert (1, "accuracy_sd_of_clients") not in found


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"evaluate": "both"}, 'evaluate="both" is not possible with strategy="local"'),
        (federation_of_nodes(), 'evaluate="clients" is not possible with strategy="local"'),
        ({"validation": "0.1"}, 'validation="0.1" is not possible with strategy="local"'),
        ({"privacy": "local"}, 'privacy="local" is not possible with strategy="local"'),
        ({"robust": "median"}, 'robust="median" is not possible with strategy="local"'),
    ],
)
def test_what_needs_a_model_of_all_is_refused_in_one_sentence(values, said):
    with pytest.raises(ConfigError, match=said) as refusal:
        read_run_config({"strategy": "local", **values})
    assert "\n" not in str(refusal.value)


def test_no_validation_image_is_trained_on(federation):
    built = federation(2, strategy="centralised", validation="0.2", **STEPS)
    built.run()
    assert all(row["accuracy"] for row in built.rows)
    config, dataset = built.strategy.run.config, built.strategy.run.dataset
    kept = validation_part(config, dataset, torch.device("cpu")).positions.tolist()
    assert len(kept) == 80
    pool = all_images(config, 2, 10).positions.tolist()
    assert len(pool) == 320
    assert not set(pool) & set(kept)
