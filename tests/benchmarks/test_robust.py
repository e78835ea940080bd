"""The measurement of robust means runs; its numbers are in docs/robust.md."""

import csv

import pytest

from benchmarks import robust


@pytest.mark.slow
def test_a_row_for_each_rule_and_attack(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(robust, "RULES", ("none", "median"))
    output = tmp_path / "robust.csv"
    settings = {"clients": 3, "hostile": 1, "rounds": 1, "epochs": 1, "batch_size": 256, "seeds": 1}
    robust.main("fedavg", "iid", output=output, **settings)
    with output.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["hostile"], row["robust"]) for row in rows] == [
        (attack, rule) for attack in robust.ATTACKS for rule in ("none", "median")
    ]
    assert all(0 <= float(row["accuracy"]) <= 100 for row in rows)
    assert "scaling" in capsys.readouterr().out
