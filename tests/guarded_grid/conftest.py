"""A real SuperLink with two nodes, and the guarded grid in front of it."""

import logging

import pytest
from grid_cases import MODEL
from superlink import superlink

from fedadb_app.guarded_grid import Allowance, GuardedGrid


@pytest.fixture(scope="module")
def link():
    level = logging.getLogger("flwr").level
    logging.getLogger("flwr").setLevel(logging.WARNING)  # a line per object otherwise
    with superlink(num_nodes=2) as link:
        yield link
    logging.getLogger("flwr").setLevel(level)


@pytest.fixture
def grid(link) -> GuardedGrid:
    link.beat()
    return GuardedGrid(link.grid, Allowance.of(MODEL, 0))
