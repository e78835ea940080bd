"""What must hold on a machine before it joins a federation as a SuperNode.

Nothing about the node's data leaves the machine. The only contact is with the named SuperLink,
over TLS: for what it tells anyone (``GET /health``, as Flower's own tools ask), and, once its
certificate is accepted, for whether it knows the node's public key.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fedadb_app.errors import FedADBError
from fedadb_app.node_check.machine import (
    check_data,
    check_device,
    check_disk,
    check_key,
    check_memory,
    check_versions,
)
from fedadb_app.node_check.settings import NodeSettings
from fedadb_app.node_check.superlink import check_admission, check_clock, check_superlink


@dataclass(frozen=True)
class Result:
    """One line: what was looked at, whether it is well, and what was found or what to do."""

    name: str
    passed: bool
    text: str


def check_node(settings: NodeSettings) -> Iterator[Result]:
    """Go through all checks, whatever fails among them; a result comes as soon as it is known."""
    for name, check in CHECKS.items():
        try:
            yield Result(name, True, check(settings))
        except FedADBError as error:
            yield Result(name, False, str(error))
        except Exception as error:  # whatever is wrong with a machine, the other lines still come
            yield Result(name, False, f"{type(error).__name__}: {error}".splitlines()[0])


CHECKS: Mapping[str, Callable[[NodeSettings], str]] = {
    "versions": check_versions,
    "memory": check_memory,
    "disk": check_disk,
    "device": check_device,
    "data": check_data,
    "key": check_key,
    "superlink": check_superlink,
    "clock": check_clock,
    "admission": check_admission,
}
"""Line -> check, in the order shown."""
