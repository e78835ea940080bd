"""`fedadb data`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from fedadb_app.cli.console import err, fail, one_sentence, out
from fedadb_app.cli.options import ConfigOption
from fedadb_app.cli.values import parse_all
from fedadb_app.client_state import NOTES, remove_notes_of_lost_images
from fedadb_app.config import RunConfig
from fedadb_app.data.clients import dataset_of, image_schema
from fedadb_app.data.copies import prepared_copies, remove
from fedadb_app.data.intake.folder import Progress as Told
from fedadb_app.data.intake.report import IntakeError, IntakeReport
from fedadb_app.data.own_images import own_source
from fedadb_app.data.prepared import ImageDataset, cache_folder, open_source
from fedadb_app.data.registry import DATASETS
from fedadb_app.data.sources import open_node_data
from strategies.registry import read_run_config


def data(
    name: Annotated[str, typer.Argument(help="As the run configuration names it.")] = "",
    data_dir: Annotated[str, typer.Option(help="Where files lie or are downloaded to.")] = "",
    run_config: ConfigOption = None,
    clean: Annotated[
        bool, typer.Option("--clean", help="List prepared copies; remove what is of no use.")
    ] = False,
) -> None:
    """Download (where needed), check and prepare a data set on this machine, and report on it.

    With classes and image-shape in --run-config, a path is looked at as a node's own images.
    """
    with one_sentence():
        if clean:
            _clean()
        if name:
            _prepare(name, data_dir, run_config)
        elif not clean:
            fail("name a data set, or say --clean")


def _prepare(name: str, data_dir: str, run_config: list[str] | None) -> None:
    values = {**parse_all(run_config), "dataset": name, "data-dir": data_dir}
    config, _, _ = read_run_config(values)
    try:
        with _bar() as told:
            dataset = _opened(config, told)
    except IntakeError as error:
        _show(error.report)
        raise
    channels, height, width = dataset.image_shape
    if dataset.report is not None:
        _show(dataset.report)
    out.print(
        f"{name}: {len(dataset.train_labels)} training and {len(dataset.test_labels)} test "
        f"images of {height}x{width} pixels and {channels} channel(s), "
        f"{dataset.num_classes} classes",
        markup=False,
        soft_wrap=True,
    )


def _opened(config: RunConfig, told: Told) -> ImageDataset:
    if DATASETS.find(config.dataset).take_in is None:
        return dataset_of(config, download=True)
    path = Path(config.dataset).expanduser()
    if config.own_data:
        return open_node_data(path, image_schema(config), config.intake, told)
    return open_source(config.dataset, own_source(path, config.intake, progress=told))


@contextmanager
def _bar() -> Iterator[Told]:
    """Show how many files are done, once there is something to wait for."""
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("reading images", total=None, visible=False)
        yield lambda done, total: progress.update(task, completed=done, total=total, visible=True)


def _show(report: IntakeReport) -> None:
    for line in report.lines():
        out.print(line, markup=False, soft_wrap=True)


def _clean() -> None:
    copies = prepared_copies()
    for copy in copies:
        why = f"removed: {copy.why_old}" if copy.why_old else "kept"
        if copy.why_old:
            remove(copy)
        out.print(
            f"{copy.bytes / 2**20:9.1f} MiB  {copy.folder.name}  of {copy.origin}  {why}",
            markup=False,
            soft_wrap=True,
        )
    freed = sum(copy.bytes for copy in copies if copy.why_old)
    out.print(f"{len(copies)} prepared copies, {freed / 2**20:.1f} MiB freed")
    notes, lost = remove_notes_of_lost_images(cache_folder() / NOTES)
    if notes:
        out.print(
            f"{notes} notes of what runs were trained on here (a resumed run needs its own), "
            f"{lost} removed: their images are gone",
            soft_wrap=True,
        )
