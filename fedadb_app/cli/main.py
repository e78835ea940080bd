"""The `fedadb` command: what Flower's own command line lacks."""

import typer

from fedadb_app.cli.analyse import analyse
from fedadb_app.cli.audit import audit, print_app_hash
from fedadb_app.cli.certificates import certificates
from fedadb_app.cli.check_node import check_this_node
from fedadb_app.cli.compare import compare
from fedadb_app.cli.data import data
from fedadb_app.cli.evaluate import evaluate
from fedadb_app.cli.export import card, export
from fedadb_app.cli.metrics import metrics
from fedadb_app.cli.nodes import PASSED_ON, superlink, supernode
from fedadb_app.cli.predict import predict_images
from fedadb_app.cli.report import report
from fedadb_app.cli.reproduce import reproduce
from fedadb_app.cli.run import run

main = typer.Typer(
    help="Run and compare federated-learning methods on this machine's SuperLink.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
main.command()(run)
main.command()(compare)
main.command()(report)
main.command()(evaluate)
main.command()(analyse)
main.command(name="predict")(predict_images)
main.command()(export)
main.command()(card)
main.command()(reproduce)
main.command()(data)
main.command()(certificates)
main.command()(metrics)
main.command(name="check-node")(check_this_node)
main.command()(audit)
main.command(name="app-hash")(print_app_hash)
main.command(context_settings=PASSED_ON)(superlink)
main.command(context_settings=PASSED_ON)(supernode)
