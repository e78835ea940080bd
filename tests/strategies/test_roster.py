"""Who is connected: identities, waiting, and what is refused before round 1."""

import logging

import pytest
from fake_grid import SimulatedGrid, simulated_nodes
from faults import fails, silent
from helpers import messages_of
from roster_cases import claim, make, make_own, queries, simulation

from fedadb_app.config import RunConfig
from fedadb_app.data.clients import SampleCounts
from fedadb_app.errors import NodeError
from strategies.roster import Roster

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


def waits(caplog):
    """What the log says of waiting."""
    return [said for said in messages_of(caplog.records, "INFO") if "waiting" in said]


def test_a_run_that_waits_says_for_whom_and_how_long(clock, hospital, caplog):
    roster, grid = make_own({7: hospital()}, node_timeout=130.0, min_nodes=2)
    with caplog.at_level(logging.INFO), pytest.raises(NodeError):
        roster.gather(grid)
    state = "1 SuperNodes are connected, 2 are needed; waiting, for"
    assert waits(caplog) == [f"{state} {seconds} s more at most" for seconds in (125, 65, 5)]


def test_a_run_that_waits_names_a_node_that_has_not_answered(clock, hospital, caplog):
    roster, grid = make_own({7: hospital(), 8: hospital()}, node_timeout=30.0)
    grid.identity_faults[8] = silent
    with caplog.at_level(logging.INFO):
        roster.gather(grid)
    state = "1 SuperNodes are connected (1 more left out; node 8: it has not answered yet)"
    assert waits(caplog) == [f"{state}, 1 are needed; waiting, for 25 s more at most"]


def test_a_simulation_whose_nodes_do_not_come_says_so(clock, caplog):
    roster, grid = Roster(RunConfig(node_timeout=10.0)), SimulatedGrid({}, {}, registered=[])
    with caplog.at_level(logging.INFO), pytest.raises(NodeError):
        roster.gather(grid)
    assert waits(caplog)[0] == "the simulation has no nodes yet; waiting, for 5 s more at most"


def test_who_need_not_wait_says_nothing(clock, caplog):
    roster, grid = make(simulated_nodes(3))
    with caplog.at_level(logging.INFO):
        roster.gather(grid)
    assert waits(caplog) == []


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
