"""`fedadb predict`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedadb_app.analysis.open_run import open_run
from fedadb_app.cli.console import err, one_sentence, out
from fedadb_app.data.intake.report import IntakeError
from fedadb_app.inference.operating import operating_point_of
from fedadb_app.inference.predict import Kept, predict

ModelOption = Annotated[
    Kept, typer.Option(help="Of the last round, or of the one that validation chose.")
]


def predict_images(
    run: Annotated[Path, typer.Argument(help="The folder of a run; nothing else is needed.")],
    images: Annotated[
        Path,
        typer.Argument(
            help="Folder, image, list of files (.txt; .csv with a column file) or .npz."
        ),
    ],
    output: Annotated[Path, typer.Option(help="The CSV file to write.")] = Path("predictions.csv"),
    model: ModelOption = "final",
    intensity: Annotated[
        str, typer.Option(help='What is black and white in more than 8 bits, as "0,4095".')
    ] = "",
    sensitivity: Annotated[
        float | None,
        typer.Option(help="Of two classes: a threshold that finds this share of the second."),
    ] = None,
    array: Annotated[
        str, typer.Option(help="Of an .npz file only this array; default: each of images.")
    ] = "",
) -> None:
    """Say of new images which class a run's model takes each for, with all probabilities.

    They are prepared as the run's own were: shape, resizing, intensity, mean and deviation are
    those in its folder. A file that cannot be used gets a row that says why.
    """
    with one_sentence():
        saved = open_run(run.expanduser().absolute())
        options = saved.inputs.options
        if intensity:
            options = replace(options, intensity=intensity)
        point = None if sensitivity is None else operating_point_of(saved, model, sensitivity)
        try:
            found = predict(saved, model, images.expanduser(), options, array)
        except IntakeError as error:
            for line in error.report.lines():
                err.print(line, markup=False, soft_wrap=True)
            raise
        found.write(output, None if point is None else point.threshold)
        for line in found.report.lines():
            out.print(line, markup=False, soft_wrap=True)
        if point is not None:
            out.print(
                f"{found.class_names[1]} from a probability of {point.threshold:.9g} on: on the "
                f"run's validation images sensitivity {point.sensitivity:.3f}, specificity "
                f"{point.specificity:.3f}",
                markup=False,
                soft_wrap=True,
            )
        unusable = sum(bool(file.problem) for file in found.files)
        out.print(
            f"{output}: {len(found.probabilities)} images; {unusable} files could not be used",
            markup=False,
            soft_wrap=True,
        )
