"""`fedadb data`."""

from typing import Annotated

import typer

from fedadb_app.cli.common import one_sentence, out
from fedadb_app.data.sources import open_dataset


def data(
    name: Annotated[str, typer.Argument(help="As the run configuration names it.")],
    data_dir: Annotated[str, typer.Option(help="Where files lie or are downloaded to.")] = "",
) -> None:
    """Download (where needed), check and prepare a data set on this machine."""
    with one_sentence():
        dataset = open_dataset(name, data_dir, download=True)
        channels, height, width = dataset.image_shape
        out.print(
            f"{name}: {len(dataset.train_labels)} training and {len(dataset.test_labels)} test "
            f"images of {height}x{width} pixels and {channels} channel(s), "
            f"{dataset.num_classes} classes",
            markup=False,
        )
