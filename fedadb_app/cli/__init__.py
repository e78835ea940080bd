"""The `fedadb` command: what Flower's own command line lacks."""

import typer

from fedadb_app.cli.comparing import compare
from fedadb_app.cli.nodes import certificates, check_this_node
from fedadb_app.cli.reading import analyse, report
from fedadb_app.cli.reproducing import reproduce
from fedadb_app.cli.running import data, run

main = typer.Typer(
    help="Run and compare federated-learning methods on this machine's SuperLink.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
main.command()(run)
main.command()(compare)
main.command()(report)
main.command()(analyse)
main.command()(reproduce)
main.command()(data)
main.command()(certificates)
main.command(name="check-node")(check_this_node)
