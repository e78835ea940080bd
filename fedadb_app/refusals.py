"""Why a reply cannot be used, in words that are safe to log; and how a node refuses."""

from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import Error, Message

REFUSED, DAMAGED = 1000, 1001
"""Codes of errors that the app itself makes, at the node and at the server; Flower's are small."""

_LONGEST_REASON = 2000  # characters; the end says most
_LONGEST_TRACEBACK = 100_000  # characters of an error's text that are looked at


class UnusableReplyError(Exception):
    """A reply cannot be used; the message is the reason, for the log.

    Much of it may be a node's own words: control characters are escaped, and a long text is cut, so
    that no node can write lines of its own into the server's log.
    """

    def __init__(self, reason: str) -> None:
        safe = "".join(c if c.isprintable() else repr(c)[1:-1] for c in reason[-_LONGEST_REASON:])
        super().__init__(safe)


class RefusalError(UnusableReplyError):
    """The node does not, or no longer, hold the data that it stated; someone must look there."""


def refusal(message: Message, reason: str) -> Message:
    """Answer that this node cannot do what it is asked, until someone mends something there."""
    return Message(Error(REFUSED, reason), reply_to=message)


def refuse_error(reply: Message) -> None:
    """Raise what an error in place of an answer says.

    Raises
    ------
    UnusableReplyError
        If the reply is one; a `RefusalError` if the node refuses.
    """
    if reply.has_error():
        code, said = reply.error.code, reply.error.reason or ""
        reason = _in_one_line(said[-_LONGEST_TRACEBACK:]) or f"error code {code} without a reason"
        raise (RefusalError if code == REFUSED else UnusableReplyError)(reason)


def _in_one_line(reason: str) -> str:
    """Return the message in what Flower says of a failed client: in simulation a traceback."""
    _, marker, message = reason.rpartition("ClientAppException occurred. Message: ")
    lines = (message if marker else reason).strip().splitlines()
    if marker and lines:
        return lines[0].removesuffix("'>")
    return lines[-1].removesuffix("'>") if len(lines) > 1 else reason


@contextmanager
def last_resort() -> Iterator[None]:
    """Read a reply in here: whatever fails is an `UnusableReplyError` that names the exception."""
    try:
        yield
    except UnusableReplyError:
        raise
    except Exception as error:
        raise UnusableReplyError(f"reading it failed: {named(error)}") from error


def named(error: Exception) -> str:
    """Return an exception's kind and text in one line."""
    said = " ".join(str(error)[:_LONGEST_REASON].split())
    return f"{type(error).__name__}: {said}"
