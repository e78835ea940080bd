"""Rosters and fake grids of nodes, for the tests of who is connected."""

from fake_grid import FakeGrid, SimulatedGrid, simulated_nodes
from helpers import federation_of_nodes

from fedadb_app.config import RunConfig
from strategies.registry import read_run_config
from strategies.roster import Roster


def make(nodes, **changes) -> tuple[Roster, FakeGrid]:
    return Roster(RunConfig(**changes)), FakeGrid({}, nodes)


def make_own(nodes, **changes) -> tuple[Roster, FakeGrid]:
    """The same for nodes with their own data."""
    named = {key.replace("_", "-"): value for key, value in changes.items()}
    values = {**federation_of_nodes(classes=10), "evaluate": "none", **named}
    return Roster(read_run_config(values)[0]), FakeGrid(values, nodes)


def look(roster: Roster, grid: FakeGrid, clock, seconds: float = 0.0) -> None:
    """Begin a round some time later."""
    clock.now += seconds
    roster.refresh(grid)


def claim(partition: int, parts: int) -> dict[str, int]:
    return {"partition-id": partition, "num-partitions": parts}


def queries(grid: FakeGrid) -> list[int]:
    return [m.metadata.dst_node_id for m in grid.sent]


def simulation(clients: int) -> SimulatedGrid:
    nodes = simulated_nodes(clients)
    return SimulatedGrid({}, nodes, registered=list(nodes))
