"""The `fedadb` command: what Flower's own command line lacks.

Each command's module is imported when it is called: half of them need PyTorch, SciPy or
Matplotlib, seconds that the others, and `fedadb --help`, should not cost.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from click import Command
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True)
class Entry:
    """A command: the function that it is, as ``module:function``, and the first line of its help.

    ``passed_on``: every option, ``--help`` too, belongs to the command of Flower that it becomes.
    """

    function: str
    line: str
    passed_on: bool = False

    def command(self, name: str) -> Command:
        """Import the command."""
        module, function = self.function.split(":")
        own = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
        app = typer.Typer(add_completion=False)
        app.command(name, context_settings=own if self.passed_on else None)(
            getattr(import_module(f"fedadb_app.cli.{module}"), function)
        )
        return typer.main.get_command(app)


COMMANDS = {
    "run": Entry(
        "run:run", "Run one federation, show its progress, and exit with 1 unless it completed."
    ),
    "compare": Entry(
        "compare:compare", "Run every method with every seed and alpha, and set them side by side."
    ),
    "tune": Entry(
        "tune:tune",
        "Choose the values of every method on validation images, with the same budget for all.",
    ),
    "report": Entry(
        "report:report", "Write one HTML page about a run or a comparison, finished or not."
    ),
    "evaluate": Entry(
        "evaluate:evaluate",
        "Print and write a run's test metrics with 95 % bootstrap intervals.",
    ),
    "analyse": Entry(
        "analyse:analyse",
        "Look into a run's global model: sharpness, its anchors among real images, drift.",
    ),
    "predict": Entry(
        "predict:predict_images",
        "Say of new images which class a run's model takes each for, with all probabilities.",
    ),
    "export": Entry(
        "export:export",
        "Write a run's model as one file for others, with a model card beside it.",
    ),
    "card": Entry(
        "export:card",
        "Write MODEL_CARD.md into a run's folder: what the model is, and what was not tested.",
    ),
    "log": Entry("log:log", "Hand a run over to MLflow, Weights & Biases or TensorBoard, once."),
    "reproduce": Entry(
        "reproduce:reproduce",
        "Run what is missing for tables and figures of the paper; write each beside its numbers.",
    ),
    "data": Entry(
        "data:data",
        "Download (where needed), check and prepare a data set on this machine, and report on it.",
    ),
    "certificates": Entry(
        "certificates:certificates",
        "Make what TLS and node authentication need; nothing that exists is overwritten.",
    ),
    "metrics": Entry(
        "metrics:metrics",
        "Serve how the runs in a folder stand to Prometheus, at /metrics, until interrupted.",
    ),
    "check-node": Entry(
        "check_node:check_this_node",
        "Say whether this machine can join; takes the options of `flower-supernode`.",
    ),
    "audit": Entry(
        "audit:audit",
        "Show what runs asked of this node and what it sent; exit with 1 if the log was changed.",
    ),
    "app-hash": Entry(
        "audit:print_app_hash",
        "Print the hash of a checkout's code, for a study file's trusted-apps.",
    ),
    "superlink": Entry(
        "nodes:superlink",
        "Be Flower's SuperLink, fit for ten hospitals; takes the options of `flower-superlink`.",
        passed_on=True,
    ),
    "supernode": Entry(
        "nodes:supernode",
        "Be Flower's SuperNode, without its waits; takes the options of `flower-supernode`.",
        passed_on=True,
    ),
}


class Commands(TyperGroup):
    """Lists every command by its line, and imports the one that is called."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401  # typer's own
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name, help=e.line) for name, e in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401
        """See `click.Group`."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed if name is None else COMMANDS[name].command(name), rest


main = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@main.callback()
def fedadb() -> None:
    """Run and compare federated-learning methods on this machine's SuperLink."""
