"""Scikit-learn's bundled scans of handwritten digits: real images that need no network."""

from pathlib import Path

import numpy as np
from PIL import Image

from fedadb_app.data.arrays import SMALLEST_SIDE
from fedadb_app.data.dataset import Dataset
from fedadb_app.data.prepared import Source, stamp_of


def write_digits(folder: Path) -> list[str]:
    """Write the 1 797 digits, 8x8 with 17 grey levels, enlarged to 28x28."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    grey = np.round(digits.images * (255 / 16)).astype(np.uint8)
    side = (SMALLEST_SIDE, SMALLEST_SIDE)
    images = np.stack(
        [np.asarray(Image.fromarray(g).resize(side, Image.Resampling.BILINEAR)) for g in grey]
    )[:, None]
    labels = digits.target.astype(np.int64)
    # A fixed split: which images are held out does not depend on the run's seed.
    train, test = train_test_split(
        np.arange(len(labels)), test_size=360, stratify=labels, random_state=0
    )
    for part, index in (("train", np.sort(train)), ("test", np.sort(test))):
        np.save(folder / f"{part}_images.npy", images[index])
        np.save(folder / f"{part}_labels.npy", labels[index])
    return [str(digit) for digit in range(10)]


def _locate(name: str, home: Path, download: bool) -> Source:
    del home, download  # they are part of scikit-learn
    return Source(name, stamp_of(), write_digits)


DATASET = Dataset(
    title="digits",
    paper="Alpaydin and Kaynak, UCI 1998 (scikit-learn)",
    locate=_locate,
    image_shape=(1, 28, 28),
    num_classes=10,
)
