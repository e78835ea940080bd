"""`fedadb export` and `fedadb card`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedadb_app.analysis.open_run import open_run
from fedadb_app.cli.console import one_sentence, out
from fedadb_app.cli.predict import ModelOption
from fedadb_app.inference.card import write_card
from fedadb_app.inference.export import export_onnx, export_safetensors
from fedadb_app.runs.summary import SUMMARY

RunArgument = Annotated[Path, typer.Argument(help="The folder of a run.")]


def export(
    run: RunArgument,
    form: Annotated[
        Literal["onnx", "safetensors"],
        typer.Option("--format", help="onnx: image bytes in, probabilities out; or the weights."),
    ] = "onnx",
    output: Annotated[
        Path | None, typer.Option(help="The file to write; default: in the run's folder.")
    ] = None,
    model: ModelOption = "final",
    images: Annotated[
        Path | None,
        typer.Option(help="Compare ONNX with PyTorch on these; default: the run's test part."),
    ] = None,
) -> None:
    """Write a run's model as one file for others, with a model card beside it."""
    with one_sentence():
        saved = open_run(run.expanduser().absolute())
        target = (output or saved.folder / f"{model}.{form}").expanduser()
        said = ""
        if form == "onnx":
            said = f": as PyTorch on {export_onnx(saved, model, target, images)}"
        else:
            export_safetensors(saved, model, target)
        out.print(f"{target}{said}", markup=False, soft_wrap=True)
        if (saved.folder / SUMMARY).exists():
            card = str(write_card(saved, model, target.parent))
        else:
            card = "no model card: the folder has no record of a run, as that of a site's own model"
        out.print(card, markup=False, soft_wrap=True)


def card(
    run: RunArgument,
    model: ModelOption = "final",
) -> None:
    """Write MODEL_CARD.md into a run's folder: what the model is, and what was not tested."""
    with one_sentence():
        saved = open_run(run.expanduser().absolute())
        out.print(str(write_card(saved, model, saved.folder)), markup=False, soft_wrap=True)
