"""Every name of Flower that Flower does not publish: the page to review before ``<1.43`` is lifted.

Published are ``flwr.app``, ``flwr.clientapp`` (``.mod``), ``flwr.serverapp`` (``.strategy``) and
``flwr.simulation``; only this module imports anything else. What a ClientApp's process does not
need is imported where it is used: it brings SQLAlchemy and HTTP clients, for which every process
of a node would wait.
"""

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, TypeGuard

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Context, Message
from flwr.serverapp import Grid

if TYPE_CHECKING:
    from flwr.superlink.grid import InMemoryGrid as InMemoryGrid  # for annotations elsewhere

ClientAppCallable = Callable[[Message, Context], Message]
"""What a mod calls next: ``flwr.clientapp.typing.ClientAppCallable``, which a test compares."""


def is_simulation(grid: Grid) -> "TypeGuard[InMemoryGrid]":
    """Whether the nodes are simulated in this process.

    ``InMemoryGrid`` is the `Grid` of Flower's simulation; its ``pull_interval`` and its
    ``get_nodes`` (ids in order of registration) are used. If another class took its place, a
    simulation's clients would be asked one by one and trained in no particular order.
    """
    from flwr.superlink.grid import InMemoryGrid

    return isinstance(grid, InMemoryGrid)


def call_on_exit(handler: Callable[[], None]) -> None:
    """Have a function called when Flower ends this process, which tells no thread of it.

    Without ``add_exit_handler`` a simulation that ``flwr stop`` ends would stay `running` in its
    summary.
    """
    from flwr.supercore.exit import add_exit_handler

    add_exit_handler(handler)


class Admission(Enum):
    """What a SuperLink answers to a node's key."""

    KNOWN_KEY = "known key"
    UNKNOWN_KEY = "unknown key"
    BAD_SIGNATURE = "bad signature"


def ask_admission(
    superlink: str, root_certificates: bytes, key: ec.EllipticCurvePrivateKey
) -> Admission | int:
    """Ask a SuperLink whether it knows a node's key, without joining.

    The request is the one with which a SuperNode joins (``FleetHttpClient``,
    ``NodeAuthHttpInterceptor``, ``ActivateNodeRequest``), but for a heartbeat interval of zero:
    Flower 1.42 looks for the key first, and then refuses the interval before it changes anything
    (``flwr/superlink/servicer/fleet/fleet_handlers.py``). Were that order another, the answer
    would be another code, and `fedadb check-node` would fail with it.

    Returns
    -------
    Admission or int
        The answer, or the code of one that Flower 1.42 does not give.

    Raises
    ------
    httpx.HTTPError, OSError, ValueError
        If there is no trusted connection.
    """
    import httpx
    from flwr.proto.fleet_pb2 import ActivateNodeRequest
    from flwr.supercore.error import ApiErrorCode, FlowerError
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    try:
        with FleetHttpClient.from_server_address(
            superlink,
            insecure=False,
            root_certificates=root_certificates,
            interceptors=[NodeAuthHttpInterceptor(key, key.public_key())],
        ) as client:
            client.ActivateNode(
                ActivateNodeRequest(public_key=public_key_to_bytes(key.public_key()))
            )
    except httpx.HTTPStatusError as error:
        refusal = FlowerError.from_json(error.response.text)
        code = error.response.status_code if refusal is None else int(refusal.code)
        known = {
            int(ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL): Admission.KNOWN_KEY,
            int(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED): Admission.UNKNOWN_KEY,
            int(httpx.codes.UNAUTHORIZED): Admission.BAD_SIGNATURE,
        }
        return known.get(code, code)
    return Admission.KNOWN_KEY
