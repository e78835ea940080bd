"""A SuperLink and a SuperNode that fail when a client's deed tells them to (`rehearsal`).

The functions are whole processes, as in `fedadb_app.flower_processes`; `command` starts one.
"""

import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

from fedadb_app import flower_processes


def command(process: Callable[[], None]) -> list[str]:
    here = str(Path(__file__).parents[1])
    call = f"from flower.faulty import {process.__name__}; {process.__name__}()"
    return [sys.executable, "-P", "-c", f"import sys; sys.path.append({here!r}); {call}"]


def told(name: str) -> bool:
    """Whether a client has left a file of this name; once."""
    try:
        (Path(os.environ["FLWR_HOME"]) / name).unlink()
    except FileNotFoundError:
        return False
    return True


def superlink() -> None:
    """Answer 500 to a question for replies, as Flower's does while its database is locked."""
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
    from sqlalchemy.exc import OperationalError

    honest = SqlLinkState.get_message_res

    def get_message_res(*args: object, **kwargs: object) -> object:
        if told("locked"):
            raise OperationalError("SELECT", {}, sqlite3.OperationalError("database is locked"))
        return honest(*args, **kwargs)

    SqlLinkState.get_message_res = get_message_res
    flower_processes.superlink()


def supernode() -> None:
    """Announce a reply and upload nothing of it."""
    from flwr.supernode import start_client_internal

    honest = start_client_internal.push_object_contents_from_iterable

    def push(*args: object, **kwargs: object) -> None:
        if not told("withheld"):
            honest(*args, **kwargs)

    start_client_internal.push_object_contents_from_iterable = push
    flower_processes.supernode()
