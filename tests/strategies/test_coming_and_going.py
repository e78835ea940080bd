"""Nodes that are silent, refuse, leave or come back while a run goes on."""

import pytest
from fake_grid import simulated_nodes
from faults import fails, silent, superlink_error
from flwr.app import ConfigRecord, Message, RecordDict
from helpers import messages_of, own_data
from roster_cases import claim, look, make, make_own, queries

from fedadb_app import messages
from fedadb_app.data.clients import PartitionClaim, SampleCounts
from fedadb_app.errors import NodeError

# --- nodes that do not answer ---------------------------------------------------------------


@pytest.mark.parametrize("fault", [fails("no such module"), superlink_error, silent])
def test_a_node_that_does_not_say_who_it_is_does_not_count(clock, fault):
    roster, grid = make(simulated_nodes(3), node_timeout=2.0)
    broken = next(iter(grid.nodes))
    grid.identity_faults[broken] = fault
    with pytest.raises(NodeError, match=r"^2 SuperNodes.* 3 are needed"):
        roster.gather(grid)
    assert broken not in roster.nodes.values()


def test_an_error_is_logged_once_with_the_node(clock, caplog):
    """The node is asked again and again while the server waits, for two minutes by default."""
    roster, grid = make({41: claim(0, 2), 42: claim(1, 2)}, node_timeout=10.0)
    grid.identity_faults[42] = fails("no such module")
    with pytest.raises(NodeError):
        roster.gather(grid)
    warnings = messages_of(caplog.records, "WARNING")
    assert len(warnings) == 1
    assert "node 42" in warnings[0]
    assert "no such module" in warnings[0]


def test_an_error_from_the_superlink_is_logged_with_the_node_that_was_asked(clock, caplog):
    roster, grid = make({42: claim(0, 1)}, node_timeout=1.0)
    grid.identity_faults[42] = superlink_error
    with pytest.raises(NodeError):
        roster.gather(grid)
    assert "node 42" in messages_of(caplog.records, "WARNING")[0]


def test_a_node_that_recovers_is_taken(clock):
    roster, grid = make(simulated_nodes(2))
    broken = next(iter(grid.nodes))
    grid.identity_faults[broken] = fails()

    def recover():
        if clock.naps == 40:
            grid.identity_faults.clear()

    grid.before_look = recover
    roster.gather(grid)
    assert sorted(roster.nodes) == [0, 1]


def test_an_answer_of_another_kind_is_an_error_of_that_node_only(clock):
    roster, grid = make({41: claim(0, 1), 42: claim(0, 1)})
    grid.identity_faults[42] = lambda asked, reply: [
        Message(RecordDict({"identity": ConfigRecord({"colour": "red"})}), reply_to=asked)
    ]
    roster.gather(grid)
    assert roster.nodes == {0: 41}


def test_an_answer_of_a_node_that_was_not_asked_is_ignored():
    roster, grid = make({41: claim(0, 1)})

    def stranger(asked: Message, reply: Message) -> list[Message]:
        other = Message(RecordDict(), dst_node_id=99, message_type="query")
        content = RecordDict({"identity": ConfigRecord(claim(0, 2))})
        return [Message(content, reply_to=other), reply]

    grid.identity_faults[41] = stranger
    roster.gather(grid)
    assert roster.nodes == {0: 41}
    assert roster.num_clients == 1


# --- coming and going -----------------------------------------------------------------------


def test_a_node_that_goes_away_is_out_of_the_next_round(clock):
    roster, grid = make({7: claim(0, 3), 8: claim(1, 3), 9: claim(2, 3)})
    roster.gather(grid)
    del grid.nodes[8]
    roster.refresh(grid)
    assert roster.nodes == {0: 7, 2: 9}
    assert roster.num_clients == 3  # the data set keeps its number of parts
    assert clock.naps == 0


def test_a_part_may_come_back_on_a_new_node():
    roster, grid = make({7: claim(0, 2), 8: claim(1, 2)})
    roster.gather(grid)
    del grid.nodes[8]
    grid.nodes[80] = claim(1, 2)
    roster.refresh(grid)
    assert roster.nodes == {0: 7, 1: 80}


def test_a_node_may_join_between_rounds(hospital):
    roster, grid = make_own({7: hospital()})
    roster.gather(grid)
    grid.nodes[8] = hospital()
    roster.refresh(grid)
    assert sorted(roster.nodes) == [7, 8]
    assert sorted(queries(grid)) == [7, 8]


def test_between_rounds_it_waits_only_below_min_nodes(clock, hospital):
    roster, grid = make_own({7: hospital(), 8: hospital()}, min_nodes=2, node_timeout=5.0)
    roster.gather(grid)
    del grid.nodes[8]
    with pytest.raises(NodeError, match=r"^1 SuperNodes.* 2 are needed"):
        roster.refresh(grid)
    assert clock.naps > 0


def test_what_a_departed_node_claimed_is_forgotten(clock):
    """One started with a wrong --node-config, was stopped, and is corrected: no deadlock."""
    roster, grid = make({7: claim(0, 10)})

    def correct():
        if clock.naps == 2:
            grid.nodes.clear()
            grid.nodes.update({17: claim(0, 2), 18: claim(1, 2)})

    grid.before_look = correct
    roster.gather(grid)
    assert roster.nodes == {0: 17, 1: 18}
    assert roster.num_clients == 2


def test_a_restarted_node_replaces_its_old_self_that_is_still_listed(caplog):
    """A SuperNode without a fixed key comes back under a new id before the old one times out."""
    roster, grid = make({1: claim(0, 2), 2: claim(1, 2)})
    roster.gather(grid)
    grid.nodes[3] = claim(1, 2)
    roster.refresh(grid)
    assert roster.nodes == {0: 1, 1: 3}
    (said,) = messages_of(caplog.records, "WARNING")
    assert "partition-id=1" in said


def test_a_newcomer_that_stays_silent_holds_up_one_round_only(clock, hospital):
    roster, grid = make_own({1: hospital()})
    roster.gather(grid)
    grid.nodes[2] = hospital()
    grid.identity_faults[2] = silent
    waited = []
    for _ in range(4):
        before = clock.now
        look(roster, grid, clock)
        waited.append(clock.now - before)
        clock.now += 60
    assert waited == [pytest.approx(20, abs=0.3), 0, 0, 0]
    assert queries(grid) == [1, 2, 2]  # again after node-timeout: it may be at work on its data
    assert roster.nodes == {1: 1}


# --- refused, and back ----------------------------------------------------------------------


def test_a_node_that_refuses_is_left_out_with_its_sentence(clock, hospital, tmp_path, caplog):
    roster, grid = make_own({1: hospital(), 2: {"data-path": str(tmp_path / "nowhere")}})
    roster.gather(grid)
    assert roster.nodes == {1: 1}
    assert clock.naps == 0
    (said,) = messages_of(caplog.records, "WARNING")
    assert said == "node 2 is left out: its data cannot be used; its own log says why"


def test_it_comes_back_once_its_data_are_mended_and_no_round_waits_for_it(
    clock, hospital, tmp_path
):
    roster, grid = make_own({1: hospital(), 2: {"data-path": str(tmp_path / "later.npz")}})
    roster.gather(grid)
    look(roster, grid, clock, seconds=1)
    assert queries(grid) == [1, 2]  # not asked again at once: each answer is a process there
    own_data(tmp_path / "later.npz", [1, 2, 3])
    look(roster, grid, clock, seconds=20)
    assert queries(grid) == [1, 2, 2]
    assert roster.stated[2] == SampleCounts(3, 0)
    assert clock.naps == 0


def test_no_round_waits_for_the_second_answer_of_a_refused_node(clock, hospital, tmp_path):
    """It is taken in when it is there, also rounds later."""
    roster, grid = make_own({1: hospital(), 2: {"data-path": str(tmp_path / "later.npz")}})
    roster.gather(grid)
    own_data(tmp_path / "later.npz", [1, 2, 3])
    late = []
    grid.identity_faults[2] = lambda asked, reply: late.append(reply) or []
    look(roster, grid, clock, seconds=20)
    look(roster, grid, clock, seconds=50)
    assert roster.nodes == {1: 1}
    grid.waiting += late
    look(roster, grid, clock, seconds=1)
    assert sorted(roster.nodes) == [1, 2]
    assert clock.naps == 0


def test_a_node_without_data_that_joins_is_left_out(clock, hospital, caplog):
    roster, grid = make_own({1: hospital()})
    roster.gather(grid)
    grid.nodes[2] = {}
    look(roster, grid, clock)
    look(roster, grid, clock, seconds=1)
    assert roster.nodes == {1: 1}
    (said,) = messages_of(caplog.records, "WARNING")
    assert "node 2 is left out: --node-config: data-path" in said


def test_a_client_that_is_left_out_comes_back_after_it_has_answered_anew(clock, hospital):
    roster, grid = make_own({1: hospital(5), 2: hospital(6)})
    roster.gather(grid)
    clock.now += 60
    roster.doubt(2, "its data have changed")
    assert roster.nodes == {1: 1}
    grid.nodes[2] = hospital(8)
    grid.contexts.clear()
    look(roster, grid, clock)
    assert roster.stated[2] == SampleCounts(16, 0)


def test_too_few_nodes_says_why_the_others_are_left_out(clock, tmp_path):
    roster, grid = make_own({2: {"data-path": str(tmp_path / "nowhere")}, 3: {}}, node_timeout=3.0)
    sentence = r"^0 SuperNodes are connected \(2 more left out; node 2: its data cannot be used"
    with pytest.raises(NodeError, match=sentence):
        roster.gather(grid)


@pytest.mark.parametrize(
    ("counts", "fits"),
    [
        ((1, 0), True),
        ((50, 50), True),
        ((51, 0), False),
        ((1, 51), False),
        ((0, 5), False),
        ((-3, 5), False),
        ((5, -1), False),
        ((10**9, 0), False),
    ],
)
def test_a_claim_beyond_max_examples_is_refused_and_named(clock, hospital, caplog, counts, fits):
    roster, grid = make_own({1: hospital(), 2: hospital()}, max_examples=50)
    grid.identity_faults[2] = lambda asked, reply: [
        messages.identity_reply(asked, SampleCounts(*counts))
    ]
    roster.gather(grid)
    assert (2 in roster.nodes) == fits
    warnings = messages_of(caplog.records, "WARNING")
    assert bool(warnings) != fits
    if not fits:
        assert f"node 2 is left out: it claims {counts[0]} training" in warnings[0]
        assert "max-examples=50" in warnings[0]


def test_a_claim_of_another_kind_is_refused(clock, caplog):
    """What nodes hold is the run configuration's to say."""
    for build, wrong in ((make, SampleCounts(5, 0)), (make_own, PartitionClaim(0, 1))):
        roster, grid = build({2: {}}, node_timeout=1.0)
        grid.identity_faults[2] = lambda asked, reply, wrong=wrong: [
            messages.identity_reply(asked, wrong)
        ]
        with pytest.raises(NodeError, match=r"node 2: its identity lacks whole numbers"):
            roster.gather(grid)
