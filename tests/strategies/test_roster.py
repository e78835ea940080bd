"""Who is connected: identities, waiting, and what is refused."""

import pytest
from fake_grid import FakeGrid, SimulatedGrid, simulated_nodes
from faults import fails, silent, superlink_error
from flwr.app import ConfigRecord, Message, RecordDict
from helpers import federation_of_nodes, messages_of, own_data

from fedadb_app import messages
from fedadb_app.config import RunConfig
from fedadb_app.data.clients import PartitionClaim, SampleCounts
from fedadb_app.errors import NodeError
from strategies.registry import read_run_config
from strategies.roster import Roster


def make(nodes, **changes) -> tuple[Roster, FakeGrid]:
    return Roster(RunConfig(**changes)), FakeGrid({}, nodes)


def make_own(nodes, **changes) -> tuple[Roster, FakeGrid]:
    """The same for nodes with their own data."""
    named = {key.replace("_", "-"): value for key, value in changes.items()}
    values = {**federation_of_nodes(classes=10), "evaluate": "none", **named}
    return Roster(read_run_config(values)[0]), FakeGrid(values, nodes)


@pytest.fixture
def hospital(tmp_path):
    """Make the node config of a SuperNode with so many images of its own."""
    return lambda count=7: own_data(tmp_path / f"{count}.npz", [0, 9] * count)


def look(roster: Roster, grid: FakeGrid, clock, seconds: float = 0.0) -> None:
    """Begin a round some time later."""
    clock.now += seconds
    roster.refresh(grid)


def claim(partition: int, parts: int) -> dict[str, int]:
    return {"partition-id": partition, "num-partitions": parts}


def queries(grid: FakeGrid) -> list[int]:
    return [m.metadata.dst_node_id for m in grid.sent]


# --- identities -----------------------------------------------------------------------------


def test_identity_is_the_partition_whatever_the_node_id():
    roster, grid = make({900: claim(1, 3), 20: claim(2, 3), 7: claim(0, 3)})
    roster.gather(grid)
    assert roster.nodes == {0: 7, 1: 900, 2: 20}
    assert roster.num_clients == 3


def test_a_node_with_its_own_data_is_known_by_its_node_id(hospital):
    roster, grid = make_own({900: hospital(7), 2**63 + 5: hospital(3)}, min_nodes=2)
    roster.gather(grid)
    assert roster.nodes == {900: 900, 2**63 + 5: 2**63 + 5}
    assert roster.num_clients == 2
    assert roster.stated == {900: SampleCounts(14, 0), 2**63 + 5: SampleCounts(6, 0)}


def test_each_node_is_asked_once():
    roster, grid = make(simulated_nodes(4))
    roster.gather(grid)
    roster.refresh(grid)
    roster.refresh(grid)
    assert sorted(queries(grid)) == sorted(grid.nodes)


def test_the_order_of_the_answers_does_not_matter():
    one, grid = make(simulated_nodes(5))
    other, reversed_grid = make(simulated_nodes(5))
    reversed_grid.arrange = lambda replies: replies[::-1]
    one.gather(grid)
    other.gather(reversed_grid)
    assert one.nodes == other.nodes


# --- in a simulation ------------------------------------------------------------------------


def simulation(clients: int) -> SimulatedGrid:
    nodes = simulated_nodes(clients)
    return SimulatedGrid({}, nodes, registered=list(nodes))


@pytest.mark.parametrize("clients", [1, 2, 8, 9, 100])
def test_a_simulations_clients_are_known_from_a_few_answers(clients):
    asked_all, everyone = make(simulated_nodes(clients))
    asked_all.gather(everyone)
    roster, grid = Roster(RunConfig()), simulation(clients)
    roster.gather(grid)
    assert roster.nodes == asked_all.nodes
    assert roster.num_clients == clients
    assert len(queries(grid)) == len(set(queries(grid))) <= min(clients, 16)


@pytest.mark.parametrize("odd", [0, 99])
def test_where_answers_contradict_the_order_everyone_is_asked(odd):
    roster, grid = Roster(RunConfig()), simulation(100)
    grid.registered.insert(50, grid.registered.pop(odd))  # every node after it is off by one
    roster.gather(grid)
    assert roster.nodes == {grid.nodes[node]["partition-id"]: node for node in grid.nodes}
    assert sorted(queries(grid)) == sorted(grid.nodes)


def test_a_simulation_whose_clients_all_fail_is_no_federation(clock):
    roster, grid = Roster(RunConfig(node_timeout=5.0)), simulation(3)
    grid.identity_faults = dict.fromkeys(grid.nodes, fails())
    with pytest.raises(NodeError, match="3 more left out"):
        roster.gather(grid)


# --- waiting --------------------------------------------------------------------------------


def test_no_waiting_when_everyone_is_there(clock):
    roster, grid = make(simulated_nodes(3))
    roster.gather(grid)
    assert clock.naps == 0


def test_waits_for_every_part_of_a_public_data_set(clock):
    nodes = simulated_nodes(3)
    late = nodes.popitem()
    roster, grid = make(nodes)

    def join_later():
        if clock.naps == 5:
            grid.nodes.update([late])

    grid.before_look = join_later
    roster.gather(grid)
    assert clock.naps == 5
    assert sorted(roster.nodes) == [0, 1, 2]


def test_waits_for_min_nodes(clock, hospital):
    roster, grid = make_own({5: hospital()}, min_nodes=2)

    def join_later():
        if clock.naps == 3:
            grid.nodes[6] = hospital()

    grid.before_look = join_later
    roster.gather(grid)
    assert sorted(roster.nodes) == [5, 6]


def test_waits_for_the_first_node(clock, hospital):
    roster, grid = make_own({})

    def join_later():
        if clock.naps == 3:
            grid.nodes[6] = hospital()

    grid.before_look = join_later
    roster.gather(grid)
    assert roster.nodes == {6: 6}


def test_gives_up_after_node_timeout_with_the_counts(clock):
    roster, grid = make({7: claim(0, 3), 8: claim(2, 3)}, node_timeout=10.0)
    start = clock.now
    with pytest.raises(
        NodeError, match=r"^2 SuperNodes.*node-timeout=10 s.* 3 are needed"
    ) as error:
        roster.gather(grid)
    assert 10 <= clock.now - start < 11
    assert "num-partitions" in str(error.value)


def test_gives_up_on_min_nodes(clock, hospital):
    roster, grid = make_own({7: hospital()}, node_timeout=2.0, min_nodes=4)
    with pytest.raises(NodeError, match=r"^1 SuperNodes.* 4 are needed.*min-nodes"):
        roster.gather(grid)


def test_the_error_names_the_key_that_asks_for_so_many(clock):
    """Three of three parts are there; it is min-nodes that can not be met."""
    roster, grid = make(simulated_nodes(3), node_timeout=2.0, min_nodes=4)
    with pytest.raises(NodeError, match=r"^3 SuperNodes.* 4 are needed.*change min-nodes"):
        roster.gather(grid)


def test_gives_up_where_nobody_comes(clock):
    roster, grid = make({}, node_timeout=2.0)
    with pytest.raises(NodeError, match=r"^0 SuperNodes.* 1 are needed"):
        roster.gather(grid)


def test_before_round_1_it_waits_node_timeout_for_an_answer(clock, hospital, caplog):
    """A large data set takes a while to check; one good node alone must not start without it."""
    roster, grid = make_own({7: hospital(), 8: hospital()}, node_timeout=30.0)
    grid.identity_faults[8] = silent
    start = clock.now
    roster.gather(grid)
    assert 30 <= clock.now - start < 31
    assert roster.nodes == {7: 7}
    assert messages_of(caplog.records, "WARNING") == [
        "node 8 is left out: it has not answered for 30 s"
    ]


# --- refused --------------------------------------------------------------------------------


def test_one_part_on_two_nodes():
    roster, grid = make({7: claim(0, 3), 8: claim(1, 3), 9: claim(1, 3)})
    with pytest.raises(NodeError, match="partition-id=1"):
        roster.gather(grid)


def test_two_opinions_on_the_number_of_parts():
    roster, grid = make({7: claim(0, 3), 8: claim(1, 4)})
    with pytest.raises(NodeError, match=r"num-partitions.*\[3, 4\]"):
        roster.gather(grid)


@pytest.mark.parametrize(("partition", "parts"), [(3, 3), (-1, 3), (100, 3), (0, 0), (0, -1)])
def test_a_part_that_does_not_exist(partition, parts):
    roster, grid = make({7: claim(partition, parts)})
    with pytest.raises(NodeError, match=rf"partition-id={partition}.*num-partitions={parts}"):
        roster.gather(grid)


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
