"""`fedadb metrics`."""

from pathlib import Path
from typing import Annotated

import typer
from prometheus_client import CollectorRegistry, start_http_server

from fedadb_app.cli.console import fail, out
from fedadb_app.runs.prometheus import RunsCollector


def metrics(
    output_dir: Annotated[Path, typer.Option(help="The output-dir of the runs.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; whoever reaches it may read.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 9464,
) -> None:
    """Serve how the runs in a folder stand to Prometheus, at /metrics, until interrupted.

    Only files are read: neither Flower nor a run needs to be there.
    """
    folder = output_dir.expanduser().absolute()
    if not folder.is_dir():
        fail(f"--output-dir {folder}: there is no such folder")
    registry = CollectorRegistry()
    registry.register(RunsCollector(folder))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        fail(f"--host {host} --port {port}: cannot listen there ({error.strerror or error})")
    address = f"[{host}]" if ":" in host else host
    out.print(f"http://{address}:{server.server_port}/metrics", soft_wrap=True, markup=False)
    thread.join()
