"""What of the contract holds without a federation: the same bytes, resuming, any data, any net.

Not for them: replies of the participants to one global model. `centralised` asks nobody, `local`
makes nothing of what comes back, and neither is for nodes with their own images.
"""

import itertools

import pytest
import torch
from contract.settings import QUICK, SMALL_RESNET
from contract.test_sameness import (
    test_a_resumed_run_equals_an_uninterrupted_one as equal_when_resumed,
)
from helpers import identical, read_csv, read_json, serve

import strategies.centralised
from strategies.centralised import all_images
from strategies.registry import REFERENCES

every_reference = pytest.mark.parametrize("name", list(REFERENCES))


@every_reference
def test_a_seed_gives_the_same_bytes_in_whatever_order_replies_come(finished, federation, name):
    one, other = finished(name), federation(name)
    other.grid.arrange = lambda replies: replies[::-1]
    other.run()
    assert identical(one.strategy.global_model, other.strategy.global_model)
    for file in ("diagnostics.csv", "class_accuracy.csv"):
        texts = [(f.folder.path / file).read_bytes() for f in (one, other)]
        assert texts[0] == texts[1] != b""


@every_reference
def test_another_seed_gives_another_run(finished, name):
    one, other = finished(name), finished(name, seed=1)
    assert not identical(one.strategy.global_model, other.strategy.global_model)


@every_reference
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_works_with_normalisation_layers(finished, name, norm):
    f = finished(name, clients=1, model=SMALL_RESNET, norm=norm)
    assert [r["failures"] for r in f.rows] == ["0"] * 2
    assert all(r["accuracy"] and r["loss"] for r in f.rows)
    assert all(torch.isfinite(t).all() for t in f.strategy.global_model.values())


@every_reference
def test_works_with_a_client_of_one_class(finished, name):
    assert [r["failures"] for r in finished(name, alpha=1e-3).rows] == ["0"] * 2


def test_a_resumed_local_run_equals_an_uninterrupted_one(tmp_path, colour_images):
    equal_when_resumed(tmp_path, colour_images, "local")


def test_a_resumed_centralised_run_equals_an_uninterrupted_one(
    tmp_path, colour_images, monkeypatch
):
    """The crash comes in round 4, before its images are there."""
    settings = {**QUICK, "strategy": "centralised", "dataset": colour_images, "model": "lenet"}
    settings |= {"num-server-rounds": 5, "fraction-train": 0.5, "checkpoint-every": 2}
    settings["output-dir"] = str(tmp_path)
    serve({**settings, "run-name": "whole"}, clients=4, run_id=1)
    rounds = itertools.count(1)

    def crash(*given):
        if next(rounds) == 4:
            raise KeyboardInterrupt
        return all_images(*given)

    monkeypatch.setattr(strategies.centralised, "all_images", crash)
    serve({**settings, "run-name": "a"}, clients=4, run_id=2)
    resumed = {**settings, "run-name": "b", "resume-from": str(tmp_path / "a")}
    serve(resumed, clients=4, run_id=3)
    assert read_json(tmp_path / "b" / "summary.json")["resumed_round"] == 2
    models = [(tmp_path / n / "model.safetensors").read_bytes() for n in ("whole", "b")]
    assert models[0] == models[1]
    rows = [[r["accuracy"] for r in read_csv(tmp_path / n / "rounds.csv")] for n in ("whole", "b")]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 5
