"""Flower's real SuperLink and grid in this process: HTTP, state and objects, but no SuperNode.

What a SuperNode sends is put together by the tests, down to the bytes of each object.
"""

import socket
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import NOOP_FLWR_AID
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import (
    UnexpectedObjectContentError,
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.superlink.main import create_app
from flwr.superlink.servicer.fleet import fleet_handlers

HEARTBEAT = 600.0  # seconds


@dataclass
class Parcel:
    """A reply as a SuperNode sends it: its envelope, which objects it names, and their bytes."""

    envelope: MessageProto
    tree: ObjectTree
    objects: dict[str, bytes]

    @classmethod
    def of(cls, reply: Message) -> "Parcel":
        """What an honest SuperNode makes of a reply."""
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects = {i: part.deflate() for i, part in get_all_nested_objects(reply).items()}
        envelope = message_to_proto(remove_content_from_message(reply))
        return cls(envelope, get_object_tree(reply), objects)


class SuperLink:
    """One SuperLink with one run, the nodes of its federation, and its ServerApp's grid."""

    def __init__(self, port: int, state: Any, num_nodes: int) -> None:
        self.state = state
        self.run_id = state.create_run(
            None, None, "", {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        (run,) = state.get_run_info(run_ids=[self.run_id])
        self._task = run.primary_task_id
        token = state.claim_task(self._task)
        state.activate_task(self._task)
        self.nodes = [
            state.create_node(NOOP_FLWR_AID, "", f"key {i}".encode(), HEARTBEAT)
            for i in range(num_nodes)
        ]
        self.beat()
        self.grid = HttpGrid(f"127.0.0.1:{port}", insecure=True, token=token)
        self.grid.set_run(run)

    def beat(self) -> None:
        """Say that the ServerApp and all nodes are alive."""
        self.state.acknowledge_task_heartbeat(self._task)
        for node in self.nodes:
            self.state.activate_node(node, HEARTBEAT)
            self.state.acknowledge_node_heartbeat(node, HEARTBEAT)

    def waiting_for(self, node: int) -> list[Message]:
        """What the ServerApp has sent to a node and the node has not yet fetched."""
        found = []
        for waiting in self.state.get_message_ins(node_id=node, limit=None, run_id=self.run_id):
            message_id = waiting.metadata.message_id
            tree = self.state.object_store.get_object_tree(message_id)
            ids = {part.object_id for part in iterate_object_tree(tree)}
            contents = dict.fromkeys(ids, b"")
            while not all(contents.values()):  # the ServerApp is still uploading
                contents = {i: self.state.object_store.get(i) for i in ids}
            message = inflate_object_from_contents(message_id, contents)
            message.metadata.__dict__["_message_id"] = message_id
            found.append(message)
        return found

    def send(self, parcel: Parcel, withheld: Collection[str] = ()) -> None:
        """Do what a SuperNode does with a reply; `withheld` objects are not uploaded."""
        node = Node(node_id=parcel.envelope.metadata.src_node_id)
        request = PushMessagesRequest(
            node=node, messages_list=[parcel.envelope], message_object_trees=[parcel.tree]
        )
        answer = fleet_handlers.push_messages(request, self.state)
        self._session = answer.session_id
        self.finish(parcel, set(answer.objects_to_push) - set(withheld))

    def finish(self, parcel: Parcel, object_ids: Collection[str]) -> None:
        """Upload objects of the reply that was sent last."""
        for object_id in object_ids:
            request = PushObjectRequest(
                node=Node(node_id=parcel.envelope.metadata.src_node_id),
                run_id=self.run_id,
                session_id=self._session,
                object_id=object_id,
                object_content=parcel.objects[object_id],
            )
            with suppress(ValueError, UnexpectedObjectContentError):  # a SuperLink's 500
                fleet_handlers.push_object(request, self.state)


@contextmanager
def superlink(num_nodes: int) -> Iterator[SuperLink]:
    """Serve one over HTTP until the end of the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLWR_DATABASE", FLWR_IN_MEMORY_DB_NAME)
        app = create_app()
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    link = SuperLink(listener.getsockname()[1], app.state.linkstate_factory.state(), num_nodes)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TaskIdentity, "_run_id", link.run_id)
            yield link
    finally:
        link.grid.close()
        server.should_exit = True
        thread.join()
        listener.close()
