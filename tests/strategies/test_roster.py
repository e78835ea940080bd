"""Who is connected: identities, waiting, and what is refused."""

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from helpers import (
    FakeGrid,
    SimulatedGrid,
    fails,
    messages_of,
    silent,
    simulated_nodes,
    superlink_error,
)

from fedadb_app.config import RunConfig
from fedadb_app.errors import NodeError
from strategies.roster import Roster


def make(nodes, **changes) -> tuple[Roster, FakeGrid]:
    return Roster(RunConfig(**changes)), FakeGrid({}, nodes)


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


def test_a_node_with_its_own_data_is_known_by_its_node_id():
    roster, grid = make({900: {}, 2**63 + 5: {"data": "/patients"}}, min_nodes=2)
    roster.gather(grid)
    assert roster.nodes == {900: 900, 2**63 + 5: 2**63 + 5}
    assert roster.num_clients == 2


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
    with pytest.raises(NodeError, match="3 more do not answer"):
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


def test_waits_for_min_nodes(clock):
    roster, grid = make({5: {}}, min_nodes=2)

    def join_later():
        if clock.naps == 3:
            grid.nodes[6] = {}

    grid.before_look = join_later
    roster.gather(grid)
    assert sorted(roster.nodes) == [5, 6]


def test_waits_for_the_first_node(clock):
    roster, grid = make({})

    def join_later():
        if clock.naps == 3:
            grid.nodes[6] = {}

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


def test_gives_up_on_min_nodes(clock):
    roster, grid = make({7: {}}, node_timeout=2.0, min_nodes=4)
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


def test_does_not_wait_longer_for_an_answer_than_node_timeout(clock):
    roster, grid = make(simulated_nodes(2), node_timeout=30.0)
    roster.gather(grid)
    assert grid.timeouts == [30.0]


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
    roster, grid = make({42: {}}, node_timeout=1.0)
    grid.identity_faults[42] = superlink_error
    with pytest.raises(NodeError):
        roster.gather(grid)
    assert "node 42" in messages_of(caplog.records, "WARNING")[0]


def test_a_node_that_recovers_is_taken(clock):
    roster, grid = make(simulated_nodes(2))
    broken = next(iter(grid.nodes))
    grid.identity_faults[broken] = fails()

    def recover():
        if clock.naps == 4:
            grid.identity_faults.clear()

    grid.before_look = recover
    roster.gather(grid)
    assert sorted(roster.nodes) == [0, 1]


def test_an_answer_of_another_kind_is_an_error_of_that_node_only(clock):
    roster, grid = make({41: claim(0, 1), 42: {}})
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


def test_a_node_may_join_between_rounds():
    roster, grid = make({7: {}})
    roster.gather(grid)
    grid.nodes[8] = {}
    roster.refresh(grid)
    assert sorted(roster.nodes) == [7, 8]
    assert sorted(queries(grid)) == [7, 8]


def test_between_rounds_it_waits_only_below_min_nodes(clock):
    roster, grid = make({7: {}, 8: {}}, min_nodes=2, node_timeout=5.0)
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


def test_a_newcomer_that_stays_silent_holds_up_one_round_only(clock):
    roster, grid = make({1: {}})
    roster.gather(grid)
    grid.nodes[2] = {}
    grid.identity_faults[2] = silent
    for _ in range(3):
        roster.refresh(grid)
    assert queries(grid) == [1, 2]
    assert grid.timeouts[-1] == 20
    assert roster.nodes == {1: 1}
