"""Real images in four artificial domains: a stand-in for PACS where that is not at hand.

They are PathMNIST's validation part, 10 004 images (PACS has 9 991), in turn in each style.

The domains are drawn after PACS's (photo, art painting, cartoon, sketch): they differ in colour,
detail and texture, each image is in one of them only. Nothing follows from them about PACS.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from fedadb_app.data.arrays import held_out
from fedadb_app.data.dataset import Dataset
from fedadb_app.data.datasets.medmnist_flags import class_names, official_file
from fedadb_app.data.intake.archive import read_part
from fedadb_app.data.prepared import Source, stamp_of
from fedadb_app.errors import DataError


def _photo(image: Image.Image) -> Image.Image:
    return image


def _painting(image: Image.Image) -> Image.Image:
    """Patches of one strong colour."""
    return ImageEnhance.Color(image.filter(ImageFilter.ModeFilter(3))).enhance(2.0)


def _cartoon(image: Image.Image) -> Image.Image:
    """Four levels a channel, without detail."""
    return ImageOps.posterize(image.filter(ImageFilter.SMOOTH), 2)


def _sketch(image: Image.Image) -> Image.Image:
    """Dark outlines on white."""
    return image.convert("L").filter(ImageFilter.CONTOUR).convert("RGB")


STYLED = "pathmnist-styles"

STYLES: Sequence[Callable[[Image.Image], Image.Image]] = (_photo, _painting, _cartoon, _sketch)


def write_styles(path: Path, class_names: list[str], folder: Path) -> list[str]:
    """Write the validation part of an RGB archive in MedMNIST layout, in `STYLES` by turns.

    The images of a class are dealt to the domains in turn; `held_out` says, for each class of
    each domain, which images are the test part's, as for PACS.
    """
    images, labels = read_part(path, "val", len(class_names))
    if images.shape[1] != 3:
        raise DataError(f"{path}: val_images are grey; the styles need RGB images")
    domains = np.empty_like(labels)
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        domains[of_class] = np.arange(len(of_class)) % len(STYLES)
    drawn = np.stack(
        [_drawn(image, STYLES[domain]) for image, domain in zip(images, domains, strict=True)]
    )
    kept = held_out(labels * len(STYLES) + domains)
    for part, chosen in (("train", ~kept), ("test", kept)):
        np.save(folder / f"{part}_images.npy", drawn[chosen])
        np.save(folder / f"{part}_labels.npy", labels[chosen])
    np.save(folder / "train_domains.npy", domains[~kept])
    return class_names


def _drawn(
    image: npt.NDArray[np.uint8], style: Callable[[Image.Image], Image.Image]
) -> npt.NDArray[np.uint8]:
    """Return one image, ``(3, height, width)``, in a style."""
    return np.asarray(style(Image.fromarray(image.transpose(1, 2, 0)))).transpose(2, 0, 1)


def _locate(name: str, home: Path, download: bool) -> Source:
    names = class_names("pathmnist")
    path = official_file(name, "pathmnist", home, download)
    return Source(name, stamp_of([path], names), lambda folder: write_styles(path, names, folder))


DATASET = Dataset(
    title="PathMNIST in four styles",
    paper="after MedMNIST (Yang et al., Scientific Data 2023) and PACS (Li et al., ICCV 2017)",
    locate=_locate,
    image_shape=(3, 28, 28),
    num_classes=9,
)
