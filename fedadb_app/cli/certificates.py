"""`fedadb certificates`."""

from pathlib import Path
from typing import Annotated

import typer

from fedadb_app.certificates import CA_DAYS, issue
from fedadb_app.cli.console import one_sentence, out


def certificates(
    output: Annotated[Path, typer.Option(help="Folder; a CA that lies there is used.")],
    host: Annotated[
        list[str] | None, typer.Option(help="DNS name or IP address of the SuperLink; repeatable.")
    ] = None,
    node: Annotated[
        list[str] | None, typer.Option(help="A SuperNode to make a key pair for; repeatable.")
    ] = None,
    days: Annotated[
        int, typer.Option(min=1, max=CA_DAYS, help="Validity of the SuperLink's certificate.")
    ] = 365,
) -> None:
    """Make what TLS and node authentication need; nothing that exists is overwritten.

    To renew the SuperLink's certificate, move server.crt away, run this again with the same --host
    and --output, and restart the SuperLink: CA and key are kept, and the nodes need nothing. To
    replace a node's key, make one under a new name, and let the SuperLink register the new and
    unregister the old. To replace the CA, use a new folder, and give its ca.crt to every node.
    """
    with one_sentence():
        for file in issue(output.expanduser(), host or [], node or [], days):
            out.print(f"{file.path}: {file.purpose}", soft_wrap=True, markup=False)
