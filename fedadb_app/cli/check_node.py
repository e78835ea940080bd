"""`fedadb check-node`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedadb_app.cli.console import fail, one_sentence, out
from fedadb_app.cli.options import ConfigOption
from fedadb_app.cli.values import parse_all
from fedadb_app.node_check.checks import CHECKS, check_node
from fedadb_app.node_check.settings import NodeSettings, node_config_of
from strategies.registry import read_run_config


def check_this_node(
    superlink: Annotated[str, typer.Option(help="The SuperLink, host:port.")],
    root_certificates: Annotated[Path, typer.Option(help="The CA's certificate, ca.crt.")],
    auth_supernode_private_key: Annotated[Path, typer.Option(help="This node's private key.")],
    node_config: Annotated[str, typer.Option(help="As for `flower-supernode`.")],
    run_config: ConfigOption = None,
) -> None:
    """Say whether this machine can join; takes the options of `flower-supernode`.

    The SuperLink is asked whether it is there and knows the node's public key; nothing else leaves
    this machine.
    """
    with one_sentence():
        config, _, _ = read_run_config(parse_all(run_config))
        settings = NodeSettings(
            superlink,
            root_certificates.expanduser(),
            auth_supernode_private_key.expanduser(),
            node_config_of(node_config),
            config,
        )
        failed = 0
        for result in check_node(settings):
            failed += not result.passed
            mark = "[green]pass[/]" if result.passed else "[red]FAIL[/]"
            out.print(f"{mark}  {result.name:<9}  {escape(result.text)}", soft_wrap=True)
        if failed:
            fail(f"{failed} of {len(CHECKS)} checks failed: this machine cannot join yet")
