"""Every registered method keeps the same promises, including methods that are added later."""

import numpy as np
import pytest
import torch
from faults import edited, fails, first, silent
from helpers import (
    Federation,
    federation_of_nodes,
    identical,
    make_federation,
    own_data,
    read_csv,
    read_json,
    serve,
)

from fedadb_app.config import parse_run_config
from fedadb_app.errors import ConfigError
from fedadb_app.models.classifier import ModelSpec, build_classifier
from strategies.registry import METHODS

QUICK = {
    "num-server-rounds": 2,
    "local-epochs": 1,
    "batch-size": 64,
    "learning-rate": 0.05,
    "fedadb.anchor-steps": 3,
}
every_method = pytest.mark.parametrize("name", list(METHODS))


@pytest.fixture
def federation(tmp_path):
    """Make a federation of one method; each in a folder of its own."""
    made = []

    def make(name: str, clients: int = 3, **values) -> Federation:
        settings = {**QUICK, "strategy": name, "output-dir": str(tmp_path / str(len(made)))}
        settings |= {key.replace("_", "-"): value for key, value in values.items()}
        made.append(make_federation(settings, clients=clients))
        return made[-1]

    return make


@pytest.fixture(scope="module")
def colour_images(tmp_path_factory):
    """Three classes of bright, dark and striped RGB images, in MedMNIST layout."""
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 3
    base = np.stack(
        [
            np.full((28, 28, 3), 200),
            np.full((28, 28, 3), 50),
            np.tile(np.array([0, 255])[:, None, None], (14, 28, 3)),
        ]
    )
    images = np.clip(base[labels] + rng.normal(0, 30, (80, 28, 28, 3)), 0, 255).astype(np.uint8)
    path = tmp_path_factory.mktemp("data") / "colour.npz"
    np.savez(
        path,
        train_images=images[:60],
        train_labels=labels[:60, None],
        test_images=images[60:],
        test_labels=labels[60:, None],
    )
    return str(path)


def finite(federation: Federation) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in federation.strategy.global_model.values())


@every_method
def test_same_seed_gives_the_same_bytes_and_another_seed_does_not(federation, name):
    one, other, third = federation(name), federation(name), federation(name, seed=1)
    for f in (one, other, third):
        f.run()
    assert identical(one.strategy.global_model, other.strategy.global_model)
    assert not identical(one.strategy.global_model, third.strategy.global_model)
    assert [r["accuracy"] for r in one.rows] == [r["accuracy"] for r in other.rows]


@every_method
def test_the_order_of_replies_does_not_matter(federation, name):
    forward, backward = federation(name), federation(name)
    backward.grid.arrange = lambda replies: replies[::-1]
    forward.run()
    backward.run()
    assert identical(forward.strategy.global_model, backward.strategy.global_model)


@every_method
def test_failed_silent_and_nan_clients_are_left_out(federation, name):
    f = federation(name, clients=5, min_success_fraction=0.4)
    f.fault(0, fails())
    f.fault(1, silent)
    f.fault(2, edited(first(lambda a: np.full_like(a, np.nan))))
    f.run()
    assert [(r["clients"], r["failures"]) for r in f.rows] == [("2", "3")] * 2
    assert finite(f)
    untouched = federation(name, clients=5)
    assert not identical(f.strategy.global_model, untouched.strategy.global_model)


@every_method
def test_works_with_one_client(federation, name):
    f = federation(name, clients=1)
    f.run()
    assert finite(f)
    assert [r["clients"] for r in f.rows] == ["1", "1"]


@every_method
@pytest.mark.parametrize("norm", ["batch", "batch-local", "group"])
def test_works_with_normalisation_layers_and_colour(federation, name, norm, colour_images):
    f = federation(
        name, model="resnet18", norm=norm, dataset=colour_images, num_server_rounds=1, clients=1
    )
    f.run()
    assert finite(f)
    for tensor_name, tensor in f.strategy.global_model.items():
        assert "running_var" not in tensor_name or (tensor >= 0).all()


@every_method
def test_works_with_a_client_of_one_class(federation, name, colour_images):
    f = federation(name, model="lenet", dataset=colour_images, alpha=1e-3)
    claims = [f.grid.context(node) for node in f.grid.nodes]
    assert len(claims) == 3
    held = {int(c) for c in _classes_per_client(colour_images)}
    assert 1 in held, "the partition was meant to give some client one class only"
    f.run()
    assert finite(f)


HOSPITALS = {
    "one": [[0, 1, 2] * 4],
    "two": [[0, 1, 2] * 4, [2, 2, 0] * 3],
    "one image among others": [[0, 1, 2] * 4, [1]],
    "one image alone": [[1]],
    "one class": [[0, 1, 2] * 4, [2] * 9],
}


@every_method
@pytest.mark.parametrize("labels", HOSPITALS.values(), ids=HOSPITALS)
def test_works_with_hospitals_that_hold_their_own_images(tmp_path, name, labels):
    nodes = {100 + k: own_data(tmp_path / f"{k}.npz", y, seed=k) for k, y in enumerate(labels)}
    values = {**QUICK, **federation_of_nodes(3), "strategy": name, "model": "lenet"}
    f = make_federation({**values, "output-dir": str(tmp_path / "runs")}, nodes=nodes)
    f.run()
    assert finite(f)
    assert [(r["clients"], r["failures"]) for r in f.rows] == [(str(len(labels)), "0")] * 2
    assert all((r["accuracy"] != "") == (labels != [[1]]) for r in f.rows)


@every_method
def test_works_with_a_single_image_and_batch_statistics(tmp_path, name):
    nodes = {1: own_data(tmp_path / "1.npz", [0, 1, 2] * 2), 2: own_data(tmp_path / "2.npz", [1])}
    values = {**QUICK, **federation_of_nodes(3), "strategy": name, "model": "resnet18"}
    values |= {"num-server-rounds": 1, "output-dir": str(tmp_path / "runs")}
    f = make_federation(values, nodes=nodes)
    f.run()
    assert finite(f)
    assert [(r["clients"], r["failures"]) for r in f.rows] == [("2", "0")]


def _classes_per_client(path: str) -> list[int]:
    from fedadb_app.data.clients import partition_of
    from fedadb_app.data.sources import open_dataset
    from strategies.registry import read_run_config

    config, _, _ = read_run_config({"dataset": path, "alpha": 1e-3})
    labels = open_dataset(path, "").train_labels
    return [len(np.unique(labels[part])) for part in partition_of(config, 3).indices]


@every_method
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, quadrants, name):
    """Two crashes, each in a round that clients have trained for; nodes forget everything."""
    settings = {
        **QUICK,
        "strategy": name,
        "dataset": quadrants,
        "num-server-rounds": 6,
        "fraction-train": 0.5,
        "output-dir": str(tmp_path),
        "client-state-dir": str(tmp_path / "states"),
        "checkpoint-every": 2,
    }
    serve({**settings, "run-name": "whole"}, clients=4, run_id=1)
    serve({**settings, "run-name": "a"}, clients=4, run_id=2, crash_in=4)
    for run_id, (before, after, crash_in) in enumerate([("a", "b", 6), ("b", "c", 0)], start=3):
        settings["resume-from"] = str(tmp_path / before)
        serve({**settings, "run-name": after}, 4, run_id, crash_in)

    whole, resumed = tmp_path / "whole", tmp_path / "c"
    assert read_json(tmp_path / "b" / "summary.json")["resumed_round"] == 2
    assert read_json(resumed / "summary.json")["resumed_round"] == 4
    columns = [
        [{k: v for k, v in r.items() if "seconds" not in k} for r in read_csv(f / "rounds.csv")]
        for f in (whole, resumed)
    ]
    assert len(columns[0]) == 6
    assert columns[0] == columns[1]
    for pattern in ("*_accuracy.csv", "diagnostics.csv", "*.safetensors"):
        files = [{p.name: p.read_bytes() for p in f.glob(pattern)} for f in (whole, resumed)]
        assert files[0] == files[1] != {}


@every_method
def test_unknown_and_wrong_values_are_refused(name):
    table = {method: m.params for method, m in METHODS.items()}
    with pytest.raises(ConfigError, match=f'unknown key "{name}.no-such-key"'):
        parse_run_config({f"{name}.no-such-key": 1}, table)
    for key, default in METHODS[name].params.defaults().items():
        wrong = 1 if isinstance(default, str) else "text"
        with pytest.raises(ConfigError, match=f"{name}.{key}="):
            parse_run_config({f"{name}.{key}": wrong}, table)
        if isinstance(default, float):
            with pytest.raises(ConfigError, match=f"{name}.{key}=-1"):
                parse_run_config({f"{name}.{key}": -1.0}, table)


@every_method
def test_a_reply_holds_the_model_and_two_numbers_only(federation, name):
    """No label counts, no gamma, no beta, no teacher, no tensor of a client's state."""
    f = federation(name)
    f.run()
    replies = [r for r in f.grid.received if r.metadata.message_type == "train"]
    assert len(replies) == 6
    for reply in replies:
        assert set(reply.content.keys()) == {"arrays", "metrics"}
        assert set(reply.content["arrays"].keys()) == set(f.strategy.global_model)
        numbers = set(reply.content["metrics"].keys()) - {"state-round"}  # which round, no label
        assert numbers == {"num-examples", "train-loss"}


@every_method
def test_all_methods_of_one_seed_start_from_one_extractor_and_schedule(federation, name):
    spec = ModelSpec("lenet", "batch", (1, 28, 28), 10)
    reference = build_classifier(spec, 0).features.state_dict()
    model = build_classifier(spec, 0, METHODS[name].heads)
    assert identical(model.features.state_dict(), reference)

    f, plain = federation(name, fraction_train=0.5, clients=4), federation("fedavg", 4)
    plain = federation("fedavg", fraction_train=0.5, clients=4)
    f.run()
    plain.run()
    asked = [[m.metadata.dst_node_id for m in g.trained()] for g in (f.grid, plain.grid)]
    assert asked[0] == asked[1]


ZERO = {
    "feddyn": {"feddyn.alpha": 0.0},
    "fedasam": {"fedasam.rho": 0.0},
    "fedntd": {"fedntd.beta": 0.0},
    "fedlmd": {"fedlmd.beta": 0.0},
    "feddecorr": {"feddecorr.beta": 0.0},
    "fedacg": {"fedacg.momentum": 0.0, "fedacg.beta": 0.0},
    "fedsol": {"fedsol.rho": 0.0},
    "fedadb": {
        "fedadb.use-anchors": False,
        "fedadb.use-lcb": False,
        "fedadb.sampling": "natural",
    },
}


@pytest.mark.parametrize("name", [n for n in METHODS if n in ZERO])
@pytest.mark.parametrize("model", ["lenet", "resnet18"])
def test_its_zero_setting_is_fedavg(federation, name, model, colour_images):
    """Bit for bit, BatchNorm's statistics included; heads are compared by position."""
    settings = {"model": model, "dataset": colour_images, "clients": 2}
    if model == "resnet18":
        settings |= {"num-server-rounds": 1, "clients": 1}
    zero, plain = federation(name, **ZERO[name], **settings), federation("fedavg", **settings)
    zero.run()
    plain.run()
    head = zero.strategy.run.model.evaluated_head
    renamed = {
        n.replace("heads.head.", f"heads.{head}."): t
        for n, t in plain.strategy.global_model.items()
    }
    ours = {n: t for n, t in zero.strategy.global_model.items() if n in renamed}
    assert identical(ours, renamed)
    assert [r["accuracy"] for r in zero.rows] == [r["accuracy"] for r in plain.rows]
