"""CINIC-10 and PACS: folders of image files that a user has unpacked; nothing is downloaded."""

from pathlib import Path

from fedadb_app.data.dataset import Dataset
from fedadb_app.data.folders import write_domains, write_folder
from fedadb_app.data.preparation import Preparation
from fedadb_app.data.prepared import Source, stamp_of
from fedadb_app.errors import DataError


def _unpacked(name: str, root: Path, watched: str) -> str:
    """Return the stamp of a folder; `watched` is what it follows from."""
    if not root.is_dir():
        raise DataError(
            f'dataset="{name}": the folder {root} does not exist on this machine; this data set '
            f"is not downloaded: unpack it there, or set data-dir to the folder that holds it"
        )
    return stamp_of(sorted(root.glob(watched)))


def _locate_cinic10(name: str, home: Path, download: bool) -> Source:
    del download
    root = home / "cinic10"
    # Its class folders alone: all 270 000 files would take each worker half a minute.
    stamp = _unpacked(name, root, "*/*/")
    return Source(name, stamp, lambda folder: write_folder(root, folder, side=32))


CINIC10 = Dataset(
    title="CINIC-10",
    paper="Darlow et al., 2018",
    locate=_locate_cinic10,
    image_shape=(3, 32, 32),
    num_classes=10,
    preparation=Preparation((0.4789, 0.4723, 0.4305), (0.2421, 0.2383, 0.2587), "reflect"),
)


def pacs(side: int) -> Dataset:
    """Return PACS at a size; its official images are 227x227."""

    def locate(name: str, home: Path, download: bool) -> Source:
        del download
        root = home / "pacs"
        stamp = _unpacked(name, root, "*/*/*")
        return Source(name, stamp, lambda folder: write_domains(root, folder, side))

    return Dataset(
        title="PACS",
        paper="Li et al., ICCV 2017",
        locate=locate,
        image_shape=(3, side, side),
        num_classes=7,
    )
