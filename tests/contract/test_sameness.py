"""What must not change a run's bytes: a second try, the order of replies, a crash, a zero."""

import pytest
from contract.settings import QUICK, SMALL_RESNET, every_method
from helpers import identical, read_csv, read_json, serve

from fedadb_app.models.classifier import ModelSpec, build_classifier
from strategies.registry import METHODS


@every_method
def test_a_seed_gives_the_same_bytes_in_whatever_order_replies_come(finished, federation, name):
    one, other = finished(name), federation(name)
    other.grid.arrange = lambda replies: replies[::-1]
    other.run()
    assert identical(one.strategy.global_model, other.strategy.global_model)
    assert [r["accuracy"] for r in one.rows] == [r["accuracy"] for r in other.rows]


@every_method
def test_another_seed_gives_another_model(finished, name):
    one, other = finished(name), finished(name, seed=1)
    assert not identical(one.strategy.global_model, other.strategy.global_model)


@every_method
def test_all_methods_of_one_seed_start_from_one_extractor_and_schedule(finished, name):
    spec = ModelSpec("lenet", "batch", (1, 28, 28), 10)
    reference = build_classifier(spec, 0).features.state_dict()
    model = build_classifier(spec, 0, METHODS[name].heads)
    assert identical(model.features.state_dict(), reference)

    f, plain = (finished(method, clients=4, fraction_train=0.5) for method in (name, "fedavg"))
    asked = [[m.metadata.dst_node_id for m in g.trained()] for g in (f.grid, plain.grid)]
    assert asked[0] == asked[1]
    assert len(asked[0]) == 4


ZERO = {
    "feddyn": {"feddyn.alpha": 0.0},
    "fedasam": {"fedasam.rho": 0.0},
    "fedntd": {"fedntd.beta": 0.0},
    "fedlmd": {"fedlmd.beta": 0.0},
    "feddecorr": {"feddecorr.beta": 0.0},
    "fedacg": {"fedacg.momentum": 0.0, "fedacg.beta": 0.0},
    "fedsol": {"fedsol.rho": 0.0},
    "fedprox": {"fedprox.mu": 0.0},
    "moon": {"moon.mu": 0.0},
    "fedlc": {"fedlc.tau": 0.0},
    "fedgmt": {"fedgmt.gamma": 0.0, "fedgmt.beta": 0.0},
    "fedgloss": {"fedgloss.rho": 0.0, "fedgloss.rho-local": 0.0, "fedgloss.beta": 0.0},
    "fedadb": {
        "fedadb.use-anchors": False,
        "fedadb.use-lcb": False,
        "fedadb.sampling": "natural",
    },
}


@pytest.mark.parametrize("name", [n for n in METHODS if n in ZERO])
@pytest.mark.parametrize("model", ["lenet", SMALL_RESNET])
def test_its_zero_setting_is_fedavg(finished, name, model):
    """Bit for bit, BatchNorm's statistics included; heads are compared by position."""
    clients = 1 if model == SMALL_RESNET else 2
    zero = finished(name, clients, model=model, **ZERO[name])
    plain = finished("fedavg", clients, model=model)
    head = zero.strategy.run.model.evaluated_head
    renamed = {
        n.replace("heads.head.", f"heads.{head}."): t
        for n, t in plain.strategy.global_model.items()
    }
    ours = {n: t for n, t in zero.strategy.global_model.items() if n in renamed}
    assert identical(ours, renamed)
    assert [r["accuracy"] for r in zero.rows] == [r["accuracy"] for r in plain.rows]


@every_method
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, colour_images, name):
    """Two crashes, each in a round that clients have trained for; nodes forget everything."""
    settings = {
        **QUICK,
        "strategy": name,
        "dataset": colour_images,
        "model": "lenet",
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
