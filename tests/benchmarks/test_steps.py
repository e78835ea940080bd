"""The benchmarks run; what they measure is no test."""

import re
import runpy
import sys

import pytest
from helpers import REPOSITORY


@pytest.mark.slow
def test_steps_sets_clients_and_server_beside_the_bare_loop(monkeypatch, capsys):
    arguments = "--dataset digits --clients 2 --epochs 1 --repetitions 1"
    monkeypatch.setattr(sys, "argv", ["steps", *arguments.split()])
    monkeypatch.syspath_prepend(str(REPOSITORY))
    with pytest.raises(SystemExit) as end:
        runpy.run_module("benchmarks.steps", run_name="__main__")
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert re.search(r"bare loop\W+[\d.]+\W+1\.00", shown)
    for row in ("FedAvg, client", "FedADB, client", "FedADB, anchors", "evaluation", "its metrics"):
        assert re.search(rf"{row}\W+\d+\.\d+", shown), shown
