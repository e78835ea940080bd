"""Replies of SuperNodes, from bytes to messages, each inside the failure policy of its sender.

Flower's own grid inflates replies where it fetches them: one that is no message ends the run, one
that is too large fills the server's memory, and who a reply is from is what its content says. Here
a reply that cannot be read becomes an error of its sender, which the SuperLink vouches for.
"""

import logging
import math
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

import httpx
from flwr.app import Error, Message
from flwr.serverapp import Grid

from fedadb_app import flower_internals
from fedadb_app.errors import ConfigError
from fedadb_app.flower_internals import Envelope
from fedadb_app.models.classifier import StateDict
from fedadb_app.polling import next_look
from fedadb_app.refusals import DAMAGED, named

if TYPE_CHECKING:
    from fedadb_app.flower_internals import HttpGrid

logger = logging.getLogger("flwr.fedadb")

TIMES_THE_MODEL = 4
"""How many times the model's bytes a reply may have by default."""

MOST_STRUCTURE = 1 << 20
"""Bytes of a reply that are no array data: names, metrics, an error's text."""

_OBJECTS_PER_TENSOR, _OBJECTS_BESIDE = 4, 64  # Flower makes two of a tensor, a few of the rest
_CHUNK = 5 << 20  # and one more for every so many bytes
_FETCHERS = 2  # as many as Flower has
_POLL = 1.0  # seconds between two looks for replies, at most


class ReplyTooLargeError(Exception):
    """A reply is larger than the run allows."""


@dataclass(frozen=True)
class Allowance:
    """How large a reply may be.

    Attributes
    ----------
    num_bytes : int
        Of all its objects, packed or unpacked.
    num_objects : int
        Into how many objects Flower may have divided it.
    """

    num_bytes: int
    num_objects: int

    @classmethod
    def of(cls, model: StateDict, max_reply_bytes: int) -> "Allowance":
        """Return what ``max-reply-bytes`` allows; 0 stands for four times the model.

        Raises
        ------
        ConfigError
            If it does not allow the model itself.
        """
        size = sum(tensor.numel() * tensor.element_size() for tensor in model.values())
        if 0 < max_reply_bytes < size + MOST_STRUCTURE:
            raise ConfigError(
                f"max-reply-bytes={max_reply_bytes} is not allowed: the model alone has {size} "
                f"bytes, and a reply up to {MOST_STRUCTURE} more; 0 allows {TIMES_THE_MODEL} times "
                f"the model"
            )
        num_bytes = max_reply_bytes or TIMES_THE_MODEL * size + MOST_STRUCTURE
        parts = _OBJECTS_PER_TENSOR * len(model) + num_bytes // _CHUNK
        return cls(num_bytes, parts + _OBJECTS_BESIDE)


@dataclass
class _Incoming:
    """A reply whose objects are being fetched."""

    envelope: Envelope
    contents: dict[str, bytes] = field(default_factory=dict)

    @property
    def answers(self) -> str:
        return self.envelope.metadata.reply_to_message_id

    @property
    def missing(self) -> list[str]:
        return [i for i in self.envelope.object_ids if i not in self.contents]


class GuardedGrid(Grid):
    """A deployment's grid that returns an error for a reply that it cannot or will not read.

    A reply whose upload has not ended waits for a later look, and no other reply waits for it.

    Parameters
    ----------
    grid : HttpGrid
        Flower's own.
    allowance : Allowance
        How large a reply may be.
    """

    def __init__(self, grid: "HttpGrid", allowance: Allowance) -> None:
        self._grid = grid
        self._allowance = allowance
        self._incoming: list[_Incoming] = []

    def set_run(self, run: Any) -> None:  # noqa: ANN401  # Flower's Run is not published
        """See `Grid`."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:  # noqa: ANN401
        """See `Grid`."""
        return self._grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:  # noqa: ANN401
        """See `Grid`; deprecated in Flower 1.42."""
        return self._grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        """See `Grid`."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """See `Grid`."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that are there, read or as an error."""
        wanted = set(message_ids)
        # Of one that it has handed out before, the SuperLink would say that it is lost.
        new = wanted - {reply.answers for reply in self._incoming}
        try:
            with _unless_superlink_fails("it is asked for replies again"):
                self._incoming += map(_Incoming, flower_internals.arrived(self._grid, new))
        except (ValueError, RecursionError) as error:  # nodes say of which objects replies consist
            logger.warning("the SuperLink's list of replies was unreadable (%s)", named(error))
        found = []
        for reply in [reply for reply in self._incoming if reply.answers in wanted]:
            message = self._read(reply)
            if message is not None:
                self._incoming.remove(reply)
                found.append(message)
        return found

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies; what has not come by then is not waited for."""
        # In the place of a message that the SuperLink did not take there is none.
        waited_for = {message_id for message_id in self.push_messages(messages) if message_id}
        begun = time.monotonic()
        end = begun + (math.inf if timeout is None else timeout)
        replies: list[Message] = []
        while waited_for and time.monotonic() < end:
            now_there = list(self.pull_messages(waited_for))
            replies += now_there
            waited_for -= {message.metadata.reply_to_message_id for message in now_there}
            if waited_for:
                time.sleep(next_look(time.monotonic() - begun, longest=_POLL))
        self._incoming = [reply for reply in self._incoming if reply.answers not in waited_for]
        return replies

    def _read(self, reply: _Incoming) -> Message | None:
        """Return a reply, an error in its place, or None while it is still being uploaded."""
        envelope, most = reply.envelope, self._allowance
        try:
            if not self._fetch(reply):
                return None
            arrays, structure = flower_internals.unpacked_sizes(reply.contents)
            if arrays > most.num_bytes or structure > MOST_STRUCTURE:
                raise ReplyTooLargeError
            message = flower_internals.inflate(envelope, reply.contents)
        except ReplyTooLargeError:
            reason = (
                f"its reply was refused before it was unpacked: it has more than {most.num_bytes} "
                f"bytes (max-reply-bytes), {most.num_objects} parts, or {MOST_STRUCTURE} bytes "
                f"beside its arrays"
            )
            message = envelope.message(Error(DAMAGED, reason))
        except httpx.HTTPError:  # not the node's doing
            raise
        except Exception as error:  # whatever a node's bytes do to Flower's parsers
            reason = f"its reply cannot be read: {named(error)}"
            message = envelope.message(Error(DAMAGED, reason))
        reply.contents.clear()
        with _unless_superlink_fails("it keeps a reply that has been read"):
            flower_internals.confirm(self._grid, envelope)
        return message

    def _fetch(self, reply: _Incoming) -> bool:
        """Fetch what is there of a reply's objects; return whether it is all there."""
        if len(reply.envelope.object_ids) > self._allowance.num_objects:
            raise ReplyTooLargeError
        missing, lock = reply.missing, Lock()
        left = self._allowance.num_bytes - sum(map(len, reply.contents.values()))

        def count(num_bytes: int) -> None:
            nonlocal left
            with lock:
                left -= num_bytes
                if left < 0:
                    raise ReplyTooLargeError

        def fetch(object_id: str) -> None:
            content = flower_internals.fetch_object(self._grid, object_id)
            if content is not None:
                reply.contents[object_id] = content

        with (
            _unless_superlink_fails("it is asked for the rest of a reply again"),
            flower_internals.before_each_body(self._grid, count),
            ThreadPoolExecutor(_FETCHERS) as pool,
        ):
            list(pool.map(fetch, missing))
        return not reply.missing


@contextmanager
def _unless_superlink_fails(consequence: str) -> Iterator[None]:
    """Go on where the SuperLink could not do what it was asked, as with a locked database.

    That it no longer knows this run, or cannot be reached at all, still ends the run.
    """
    try:
        yield
    except httpx.HTTPStatusError as error:
        if not error.response.is_server_error:
            raise
        logger.warning("the SuperLink failed (%s): %s", error, consequence)


def guarded(grid: Grid, allowance: Allowance) -> Grid:
    """Return the grid through which replies are to be read; a simulation's needs no guard."""
    return GuardedGrid(grid, allowance) if flower_internals.is_deployment(grid) else grid
