"""FedDyn where nodes come and go: K counts all whose movements s still holds."""

import pytest
import torch

from fedadb_app import messages
from fedadb_app.wire_arrays import to_state_dict
from strategies.resume import checkpoint_of


def leaving(built, *nodes):
    """Let nodes leave once round 1 has been asked for."""

    def look():
        for node in nodes if built.grid.trained() else ():
            built.grid.nodes.pop(node, None)

    built.grid.before_look = look
    return built


def test_those_who_left_still_count(hospitals):
    """Three train in round 1, one in round 2: theta = theta_1 + s / 3, not s / 1; off the wire."""
    built = leaving(hospitals(strategy="feddyn", learning_rate=0.05), 101, 102)
    built.run()
    assert [row["clients"] for row in built.rows] == ["3", "1"]
    replies = [r for r in built.grid.received if r.metadata.message_type == "train"]
    pairs = [
        (messages.read_train(asked)[0], to_state_dict(reply.content["arrays"]))
        for asked, reply in zip(built.grid.trained(), replies, strict=True)
    ]
    for name in built.strategy.run.model.parameter_names():
        s = sum((after[name] - sent[name]).double() for sent, after in pairs)
        expected = pairs[-1][1][name] + s / 3
        torch.testing.assert_close(built.strategy.global_model[name].double(), expected)
        assert (s / 1 - s / 3).abs().max() > 1e-4  # what the node connected now would make of it


def test_the_mean_size_is_over_all_of_them_too(hospitals):
    """32, 24 and 10 samples; the third leaves."""
    built = leaving(hospitals(strategy="feddyn"), 102)
    built.run()
    told = [messages.read_train(asked)[1] for asked in built.grid.trained()]
    means = [(t.server_round, t.attachments["feddyn"].scalars["mean-examples"]) for t in told]
    assert means == [(t, pytest.approx((32 + 24 + 10) / 3)) for t in (1, 1, 1, 2, 2)]


def test_a_checkpoint_says_who_left_before_it(hospitals):
    """As those of older versions do, so that a run of theirs goes on with the right K."""
    built = leaving(hospitals(strategy="feddyn"), 101, 102)
    built.run()
    strategy = built.strategy
    model, state = strategy.global_model, strategy.state
    found = checkpoint_of(strategy.run, strategy.clients, 2, model, state, best={})
    after = hospitals(strategy="feddyn", run_name="after")
    for node in (101, 102):
        del after.grid.nodes[node]
    after.strategy.clients.roster.refresh(after.grid)
    after.strategy.resume(found)
    after.strategy.clients.for_training(3, after.grid)
    assert after.strategy._inputs(3).num_clients == 3
