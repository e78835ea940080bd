"""docs/add-a-method.md, done as it says in a copy of the checkout: FedRS, and its tests there."""

from pathlib import Path

import pytest
from copied_checkout import blocks, copy_checkout, insert, passes

PAGE = "add-a-method.md"
REGISTRY = "defaults or unknown or strategy or result"
"""A word in the names of those tests of these files that go through the registry."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of the checkout with the page's method."""
    copy = copy_checkout(tmp_path_factory.mktemp("checkout"))
    method, imported, line, own_test = blocks(PAGE, "python")
    (table,) = blocks(PAGE, "toml")
    (copy / "strategies" / "fedrs.py").write_text(method)
    (copy / "tests" / "strategies" / "test_fedrs.py").write_text(own_test)
    registry = copy / "strategies" / "registry.py"
    insert(registry, ("from collections.abc", imported), ('    "fedavg":', line))
    with (copy / "pyproject.toml").open("a") as file:
        file.write("\n" + table)
    return copy


@pytest.mark.slow
def test_its_own_test_and_the_contract_suite_pass(checkout):
    passes(checkout, "tests/strategies/test_fedrs.py", "tests/contract", "-k", "fedrs")


@pytest.mark.slow
def test_nothing_else_has_to_know_it(checkout):
    """Its table is found, and the paper's list of methods need not be the registry."""
    passes(checkout, "tests/test_config.py", "tests/reproduction/test_catalogue.py", "-k", REGISTRY)
