"""How a round's messages reach the workers of a simulation: the largest clients first.

Flower's simulation looks for new messages every 0.1 s, takes them in the order of the partitions,
and gives each to the next free worker. With a few clients of very different sizes, that order
decides how long the last worker computes alone; "longest processing time first" ends within 4/3 of
the best schedule (Graham, 1969). So the messages of a round become visible in portions. Real
SuperNodes each compute for themselves; for them nothing changes.
"""

import os
import time
from collections.abc import Iterable, Iterator, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from fedadb_app.flower_internals import is_simulation

_LOOK = 0.12  # seconds after which Flower has taken what was pushed before
_POLL = 0.002  # seconds between two looks for replies, per message; Flower's own 0.1 at most


def largest_first(
    grid: Grid, messages: Sequence[Message], samples: Sequence[int]
) -> Iterable[Message]:
    """Return the messages as they are to be pushed.

    Parameters
    ----------
    grid : Grid
        Where they will be pushed.
    messages : Sequence[Message]
        One per participant.
    samples : Sequence[int]
        How many samples each participant trains on: what its time is proportional to.
    """
    if not is_simulation(grid):
        return messages
    grid.pull_interval = min(0.1, _POLL * len(messages))
    order = sorted(range(len(messages)), key=lambda i: samples[i], reverse=True)
    return _portions([messages[i] for i in order])


def _portions(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield one for every CPU, then 1, 2, 4 ...: order matters less among small ones."""
    end = os.cpu_count() or 1
    yield from messages[:end]
    size = 1
    while end < len(messages):
        time.sleep(_LOOK)
        yield from messages[end : end + size]
        end, size = end + size, 2 * size
