"""SVHN, CIFAR-10 and CIFAR-100: official files, downloaded, checked and read by torchvision.

Normalisation and augmentation are those of the loaders of FedNTD, FedLMD and FedSOL.
"""

from pathlib import Path

from fedadb_app.data.dataset import Dataset
from fedadb_app.data.downloads import need_files
from fedadb_app.data.preparation import Preparation
from fedadb_app.data.prepared import Source, stamp_of


def _locate(name: str, home: Path, download: bool) -> Source:
    # Imported here: torchvision's data sets take a while, and other runs do without.
    from fedadb_app.data.official import fetch, official_files, write_official

    files = official_files(name, home)
    need_files(name, home, files, (lambda folder: fetch(name, folder)) if download else None)
    return Source(name, stamp_of(files), lambda folder: write_official(name, home, folder))


SVHN = Dataset(
    title="SVHN",
    paper="Netzer et al., NeurIPS workshop 2011",
    locate=_locate,
    image_shape=(3, 32, 32),
    num_classes=10,
    preparation=Preparation((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), "constant"),
)
CIFAR10 = Dataset(
    title="CIFAR-10",
    paper="Krizhevsky, 2009",
    locate=_locate,
    image_shape=(3, 32, 32),
    num_classes=10,
    preparation=Preparation((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), "constant", 16),
)
CIFAR100 = Dataset(
    title="CIFAR-100",
    paper="Krizhevsky, 2009",
    locate=_locate,
    image_shape=(3, 32, 32),
    num_classes=100,
    preparation=Preparation((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), "constant", 16),
)
