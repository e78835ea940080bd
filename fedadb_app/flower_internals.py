"""Every name of Flower that Flower does not publish: the page to review before ``<1.43`` is lifted.

Published are ``flwr.app``, ``flwr.clientapp`` (``.mod``), ``flwr.serverapp`` (``.strategy``) and
``flwr.simulation``; only this module imports anything else, and `flower_processes`, whose
processes are Flower's own, and `simulation_workers`. What a ClientApp's process does not
need is imported where it is used: it brings SQLAlchemy and HTTP clients, for which every process
of a node would wait.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeGuard

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Array, Context, Error, Message, Metadata, RecordDict
from flwr.serverapp import Grid

if TYPE_CHECKING:
    from flwr.superlink.grid import HttpGrid as HttpGrid
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


def parse_node_config(text: str) -> Mapping[str, bool | int | float | str]:
    """Read ``--node-config`` as `flower-supernode` does, which drops what it does not understand.

    ``parse_config_args`` is what its command line calls. Were it another, `fedadb check-node`
    would pass nodes that join without their data.

    Raises
    ------
    ValueError
        If Flower refuses it.
    """
    from click import ClickException
    from flwr.cli.config_utils import parse_config_args  # type: ignore[attr-defined]

    try:
        values: dict[str, bool | int | float | str] = parse_config_args([text])
    except (ClickException, OSError) as error:
        raise ValueError(str(error)) from error
    return values


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


# --- replies, from bytes to messages --------------------------------------------------------


def is_deployment(grid: Grid) -> "TypeGuard[HttpGrid]":
    """Whether the nodes are SuperNodes, behind a SuperLink that this process asks over HTTP.

    ``HttpGrid`` is that `Grid`; its ``_runtime_client``, ``node`` and ``run`` are used below. If
    another class took its place, replies would be read by Flower alone, unguarded.
    """
    from flwr.superlink.grid import HttpGrid

    return isinstance(grid, HttpGrid)


@dataclass(frozen=True)
class Envelope:
    """A reply that has arrived, of which only what the SuperLink vouches for has been read.

    Attributes
    ----------
    metadata : Metadata
        Who sent it and what it answers, which the SuperLink has compared with what was asked. The
        reply's own content repeats that, and may lie.
    object_ids : Sequence[str]
        The objects that it consists of, the message itself last.
    """

    metadata: Metadata
    object_ids: Sequence[str]

    def message(self, content: RecordDict | Error) -> Message:
        """Return a message from this sender."""
        from flwr.app.message import make_message

        if isinstance(content, Error):
            return make_message(metadata=self.metadata, error=content)
        return make_message(metadata=self.metadata, content=content)


def arrived(grid: "HttpGrid", message_ids: Iterable[str]) -> list[Envelope]:
    """Ask the SuperLink which replies are there; it hands out each once (``PullMessages``).

    Flower's own ``HttpGrid.pull_messages`` goes on to fetch and inflate them, and one that it
    cannot inflate ends the run.
    """
    from flwr.common.serde_utils import metadata_from_proto
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    request = PullAppMessagesRequest(message_ids=message_ids)
    answer = grid._runtime_client.PullMessages(request)
    pairs = zip(answer.messages_list, answer.message_object_trees, strict=True)
    return [
        Envelope(
            metadata_from_proto(message.metadata),
            list(dict.fromkeys(node.object_id for node in iterate_object_tree(tree))),
        )
        for message, tree in pairs
    ]


def fetch_object(grid: "HttpGrid", object_id: str) -> bytes | None:
    """Return an object's bytes, or None while its upload has not ended (``PullObject``).

    Raises
    ------
    LookupError
        If the SuperLink no longer has it, as its upload was given up.
    """
    from flwr.proto.message_pb2 import PullObjectRequest

    request = PullObjectRequest(node=grid.node, run_id=grid.run.run_id, object_id=object_id)
    answer = grid._runtime_client.PullObject(request)
    if not answer.object_found:
        raise LookupError("its upload was not completed")
    content: bytes = answer.object_content
    return content if answer.object_available else None


@contextmanager
def before_each_body(grid: "HttpGrid", check: Callable[[int], None]) -> Iterator[None]:
    """Have `check` called with the length of each answer of the SuperLink before it is read.

    The HTTP client's response hooks (``ProtobufClient._client``) run when the headers are there.
    If Flower used another client, lengths would be known only once the bytes are.
    """
    client: httpx.Client = grid._runtime_client._client
    before = client.event_hooks

    def hook(response: httpx.Response) -> None:
        check(int(response.headers.get("content-length", 0)))

    client.event_hooks = {**before, "response": [*before["response"], hook]}
    try:
        yield
    finally:
        client.event_hooks = before


def confirm(grid: "HttpGrid", envelope: Envelope) -> None:
    """Let the SuperLink forget a reply's objects (``ConfirmMessageReceived``)."""
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

    grid._runtime_client.ConfirmMessageReceived(
        ConfirmMessageReceivedRequest(
            node=grid.node,
            run_id=grid.run.run_id,
            message_object_id=envelope.metadata.message_id,
        )
    )


def unpacked_sizes(contents: Mapping[str, bytes]) -> tuple[int, int]:
    """Return how many bytes of arrays a reply unpacks to, and of everything else.

    An ``Array`` names its ``ArrayChunk`` objects by number, as often as it likes.

    Raises
    ------
    Exception
        Of any kind, if an object is not what Flower makes.
    """
    from flwr.supercore.inflatable.inflatable_object import (
        get_object_body,
        get_object_head_values_from_object_content,
    )

    heads = {
        object_id: get_object_head_values_from_object_content(content)
        for object_id, content in contents.items()
    }
    chunks = {
        object_id: len(contents[object_id])
        for object_id, (kind, _, _) in heads.items()
        if kind == "ArrayChunk"
    }
    arrays = 0
    rest = sum(len(content) for content in contents.values()) - sum(chunks.values())
    for object_id, (kind, children, _) in heads.items():
        if kind == "Array":
            body = json.loads(get_object_body(contents[object_id], Array))
            arrays += sum(chunks[children[number]] for number in body["arraychunk_ids"])
    return arrays, rest


def inflate(envelope: Envelope, contents: dict[str, bytes]) -> Message:
    """Make the message of its objects' bytes (``inflate_object_from_contents``), and forget these.

    Raises
    ------
    Exception
        Of any kind, if they are not what Flower makes.
    """
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    inflated = inflate_object_from_contents(envelope.metadata.message_id, contents)
    if not isinstance(inflated, Message):
        raise TypeError(f"the reply is a {type(inflated).__name__}")
    content = inflated.error if inflated.has_error() else inflated.content
    if not isinstance(content, Error | RecordDict):
        raise TypeError(f"the reply holds a {type(content).__name__}")
    return envelope.message(content)
