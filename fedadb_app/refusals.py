"""Why a reply cannot be used, in words that are safe to log; and how a node refuses."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from flwr.app import Error, Message

REFUSED, DAMAGED = 1000, 1001
"""Codes of errors that the app itself makes, at the node and at the server; Flower's are small."""

_METRIC_NAME = re.compile(r"[a-z][a-z0-9-]{0,63}")
_MOST_METRICS = 64
_LARGEST_METRIC = 1e12
"""No loss of a training that still learns something is larger."""

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


def check_metrics(metrics: Mapping[str, object]) -> dict[str, float]:
    """Return what a reply says by name.

    Raises
    ------
    UnusableReplyError
        If these are too many, or a name or value is none.
    """
    if len(metrics) > _MOST_METRICS:
        raise UnusableReplyError(f"it has {len(metrics)} metrics, {_MOST_METRICS} at most")
    scalars = {}
    for name, value in metrics.items():
        if not _METRIC_NAME.fullmatch(name):
            raise UnusableReplyError(f"{name!r} is no name of a metric")
        scalars[name] = check_value(name, value)
    return scalars


def check_value(name: str, value: object) -> float:
    """Return a number that may be shown and averaged.

    Beyond 10^12 one client's would be all that a mean shows, and no honest one's is.

    Raises
    ------
    UnusableReplyError
        If it is no such number.
    """
    if not isinstance(value, int | float):
        raise UnusableReplyError(f"{name} is a {type(value).__name__}, not a number")
    if not math.isfinite(value):
        raise UnusableReplyError(f"{name}={value} is not finite")
    if abs(value) > _LARGEST_METRIC:
        raise UnusableReplyError(f"{name}={value:g} is beyond {_LARGEST_METRIC:g}")
    return float(value)


def are_counts(told: Sequence[object], length: int, least: int, most: float = math.inf) -> bool:
    """Whether each of what a reply tells is a list of so many whole numbers within these limits."""
    return all(
        isinstance(numbers, list)
        and len(numbers) == length
        and all(type(number) is int and least <= number <= most for number in numbers)
        for numbers in told
    )


def check_count(claimed: object, held: int) -> int:
    """Return how many samples a reply is of.

    Raises
    ------
    RefusalError
        If the client holds another number.
    """
    if type(claimed) is not int or claimed != held:
        raise RefusalError(f"num-examples={claimed}, but this client holds {held} samples")
    return claimed


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
