"""What a method sends, what it does without some replies, and which values it refuses."""

import numpy as np
import pytest
import torch
from contract.settings import every_method
from faults import edited, fails, first, silent
from helpers import identical

from fedadb_app.config import parse_run_config
from fedadb_app.errors import ConfigError
from strategies.registry import METHODS


@every_method
def test_failed_silent_and_nan_clients_are_left_out(federation, name):
    f = federation(name, clients=5, min_success_fraction=0.4)
    f.fault(0, fails())
    f.fault(1, silent)
    f.fault(2, edited(first(lambda a: np.full_like(a, np.nan))))
    before = {n: t.clone() for n, t in f.strategy.global_model.items()}
    f.run()
    assert [(r["clients"], r["failures"]) for r in f.rows] == [("2", "3")] * 2
    assert all(torch.isfinite(t).all() for t in f.strategy.global_model.values())
    assert not identical(f.strategy.global_model, before)


@every_method
def test_a_reply_holds_the_model_and_two_numbers_only(finished, name):
    """No label counts, no gamma, no beta, no teacher, no tensor of a client's state."""
    f = finished(name)
    replies = [r for r in f.grid.received if r.metadata.message_type == "train"]
    assert len(replies) == 6
    for reply in replies:
        assert set(reply.content.keys()) == {"arrays", "metrics"}
        assert set(reply.content["arrays"].keys()) == set(f.strategy.global_model)
        numbers = set(reply.content["metrics"].keys()) - {"state-round"}  # which round, no label
        assert numbers == {"num-examples", "train-loss"}


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
