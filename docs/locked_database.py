"""The smallest case of Flower 1.42's locked database: ``python docs/locked_database.py [nodes]``.

As many threads as nodes put a model of ResNet-18's size (122 tensors, 45 MB) into the store that
``flower-superlink --database`` keeps, as its request handlers do. SQLite has one writer at a time;
the others try again for ``busy_timeout`` (Flower: 5 s), in no order, so that somebody goes empty.
"""

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store.sql_object_store import SqlObjectStore

TENSORS, VALUES = 122, 92_000


def push(store: SqlObjectStore, node: int) -> list[str]:
    """Put one model; return the errors, one per object."""
    random = np.random.default_rng(node)
    tensors = {f"t{i}": Array(random.random(VALUES, np.float32)) for i in range(TENSORS)}
    record, errors = ArrayRecord(tensors), []
    try:
        store.preregister(1, get_object_tree(record))
        for object_id, part in get_all_nested_objects(record).items():
            store.put(object_id, part.deflate())
    except Exception as error:  # SQLAlchemy's, of which Flower's SuperLink makes a 500
        errors.append(str(error).splitlines()[0])
    return errors


if __name__ == "__main__":
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(nodes) as threads:
        store = SqlObjectStore(f"{folder}/state.db")
        store.initialize()
        failed = [
            errors for errors in threads.map(lambda k: push(store, k), range(nodes)) if errors
        ]
    sys.stdout.write(f"{len(failed)} of {nodes} nodes failed: {failed[:1]}\n")
