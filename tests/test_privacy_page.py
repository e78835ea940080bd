"""docs/privacy.md lists what a node sends: no more, no less than the client app really does."""

from typing import Any

import pytest
from fake_grid import node_id
from helpers import REPOSITORY, Federation, federation_of_nodes, own_data

import client_app
from strategies.registry import METHODS

TENSORS = "every tensor of the model"
Field = tuple[str, str, str]
"""(message, record, field)"""

NOT_SENT: dict[str, set[Field]] = {
    "local": {("train", "metrics", "train-loss")},
}


def listed() -> set[Field]:
    """The rows of the page's first table."""
    page = (REPOSITORY / "docs" / "privacy.md").read_text()
    section = page.partition("## What a node sends\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    fields = [tuple(cell.strip().strip("`*") for cell in row[:3]) for row in rows[2:]]
    assert len(fields) == len(set(fields))
    return set(fields)  # type: ignore[arg-type]


def sent(built: Federation) -> set[Field]:
    """What all replies of a federation held."""
    found: set[Field] = set()
    for reply in built.grid.received:
        kind = reply.metadata.message_type
        if reply.has_error():
            found |= {("any", "error", field.lstrip("_")) for field in vars(reply.error)}
            continue
        for name, record in reply.content.items():
            if name == "arrays":
                assert set(record) == set(built.strategy.global_model)
                found.add((kind, name, TENSORS))
            else:
                found |= {(kind, name, key) for key in record}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("privacy", ["none", "central", "local"])
def test_the_page_lists_what_is_sent(federation, tmp_path, privacy):
    found: set[Field] = set()
    kinds: set[str] = set()
    for name, method in METHODS.items():
        if privacy == "central" and method.server.needs_each_update:
            continue
        values: dict[str, Any] = {"privacy": privacy, "strategy": name, "run-name": name}
        values |= {"validation": "0.2", "select-by": "val-auc"}  # nothing more leaves a node
        built = federation(**values, norm="batch-local", partition="dirichlet", alpha=0.3)
        # A node that fails: its data would be those of a partition that does not exist.
        built.grid.context(node_id(1)).node_config["partition-id"] = "mine"
        built.run()
        found |= sent(built)
    if privacy == "none":  # what is told of parts of a public data set
        built = federation(evaluate="clients", **{"run-name": "clients"})
        built.run()
        found |= sent(built)
    hospitals = {
        100 + k: own_data(tmp_path / f"{k}.npz", [0, 1] * 25, [0, 1] * 10) for k in range(2)
    }
    hospitals[100]["share-class-metrics"] = True  # its own, so that what may leave is seen to
    own = {**federation_of_nodes(classes=2), "run-name": "own", "validation": "0.4"}
    own |= {"personalise-epochs": 1, "client-state-dir": str(tmp_path / "states")}
    if privacy != "none":  # clients do not evaluate: nothing would protect what they count
        own |= {"privacy": privacy, "evaluate": "none", "validation": "merged"}
        own["personalise-epochs"] = 0
    built = federation(nodes=hospitals, **own)
    built.run()
    found |= sent(built)
    kinds |= {m.metadata.message_type for m in built.grid.sent}
    by_node = {(m.metadata.src_node_id, key) for m in built.grid.received
               for key in m.content.get("metrics", {})}  # fmt: skip
    shared = ("class-", "auc", "val-auc")
    assert all(node == 100 for node, key in by_node if key.startswith(shared))
    assert not [key for _, key in by_node if key.endswith(("balanced-accuracy", "macro-f1"))]
    counted = {row for row in listed() if {row[0], row[2]} & {"evaluate", "num-validation"}}
    counted = counted if privacy != "none" else set()
    assert found == listed() - NOT_SENT.get(privacy, set()) - counted
    kinds |= {"evaluate"} if privacy != "none" else set()
    # A handler that is added to the client app must be driven here, too.
    assert {f"{kind}.default" for kind in kinds} == set(client_app.app._registered_funcs)
