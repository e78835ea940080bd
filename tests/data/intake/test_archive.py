"""The npz file: read where it is unambiguous, else one true sentence."""

import numpy as np
import pytest
from data.intake.conftest import noise

from fedadb_app.data.intake.archive_intake import take_in_archive, write_archive
from fedadb_app.data.intake.options import IntakeOptions
from fedadb_app.errors import DataError

Y = np.arange(20) % 2
X, T = noise(0, (20, 28, 30)), noise(1, (10, 28, 30))
GOOD = {"train_images": X, "train_labels": Y, "test_images": T, "test_labels": Y[:10]}


def take_in(tmp_path, options=None, **change):
    path = tmp_path / "x.npz"
    np.savez(path, **{k: v for k, v in {**GOOD, **change}.items() if v is not None})
    folder = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    report = take_in_archive(path, IntakeOptions(**(options or {})), folder)
    return report, {file.stem: np.load(file) for file in folder.glob("*.npy")}


def refused(tmp_path, *words, options=None, **change):
    with pytest.raises(DataError) as caught:
        take_in(tmp_path, options, **change)
    said = str(caught.value)
    assert "\n" not in said
    assert "damaged" not in said
    for word in words:
        assert word in said, said


def test_as_it_should_be(tmp_path):
    report, made = take_in(tmp_path)
    assert np.array_equal(made["train_images"][:, 0], X)
    assert np.array_equal(made["test_images"][:, 0], T)
    assert report.parts["train"].per_class == {"0": 10, "1": 10}
    assert report.sizes == {"28x30": 30}
    assert "not known" in report.patients


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("first", [True, False])
def test_channels_first_or_last(tmp_path, channels, first):
    images = noise(2, (20, 28, 30, channels))
    test = noise(3, (10, 28, 30, channels))
    stored = [x.transpose(0, 3, 1, 2) if first else x for x in (images, test)]
    _, made = take_in(
        tmp_path, train_images=np.ascontiguousarray(stored[0]), test_images=stored[1].copy()
    )
    assert np.array_equal(made["train_images"], images.transpose(0, 3, 1, 2))
    assert np.array_equal(made["test_images"], test.transpose(0, 3, 1, 2))


def test_an_empty_optional_part_is_none(tmp_path):
    _, made = take_in(tmp_path, val_images=X[:0], val_labels=Y[:0])
    assert len(made["train_images"]) == 20
    node = {"class_names": ("a", "b"), "image_shape": (1, 28, 30)}
    report, made = take_in(tmp_path, node, test_images=X[:0], test_labels=Y[:0])
    assert "test_images" not in made
    assert report.parts["train"].per_class == {"a": 10, "b": 10}
    refused(tmp_path, "no array test_images, or an empty one", test_images=X[:0])


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (np.array(["benign", "malignant"]), ["benign", "malignant"]),
        (np.array([b"benign", b"malignant"]), ["benign", "malignant"]),
        (np.array(["O\u0308dem", "R\u00f6ntgen"]), ["R\u00f6ntgen", "\u00d6dem"]),
    ],
)
def test_names_as_labels(tmp_path, labels, names):
    report, made = take_in(tmp_path, train_labels=labels[Y], test_labels=labels[Y[:10]])
    assert report.class_names == names
    swapped = names[0].startswith("R")
    assert made["train_labels"].tolist() == [(1 - y) if swapped else y for y in Y]


def test_names_follow_the_federation(tmp_path):
    labels = np.array(["benign", "malignant"])
    node = {"class_names": ("malignant", "benign"), "image_shape": (1, 28, 30)}
    _, made = take_in(tmp_path, node, train_labels=labels[Y], test_labels=labels[Y[:10]])
    assert made["train_labels"].tolist() == (1 - Y).tolist()
    refused(
        tmp_path,
        '"benin',
        options=node,
        train_labels=np.array(["benin", "malignant"])[Y],
        test_labels=np.array(["benin", "malignant"])[Y[:10]],
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, bool, np.int64])
def test_one_hot_rows(tmp_path, dtype):
    _, made = take_in(tmp_path, train_labels=np.eye(3, dtype=dtype)[Y], test_labels=Y[:10])
    assert made["train_labels"].tolist() == Y.tolist()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train_labels": np.array(["a", "b"], object)[Y]}, ["Python objects", ".astype(str)"]),
        ({"train_labels": None}, ["no array train_labels"]),
        ({"train_labels": np.ones((20, 2), int)}, ["one-hot", "(20, 2)"]),
        ({"train_labels": Y.astype(float)}, ["float64", "class numbers"]),
        ({"train_labels": np.array(["a", "b"])[Y]}, ["train_labels are names", "test_labels"]),
        ({"train_images": X / 255}, ["train_images", "float64", 'intensity="0,1"']),
        ({"train_images": X.astype(np.int32)}, ["int32", 'intensity="0,255"']),
        ({"train_images": np.zeros((20, 28, 30, 4), np.uint8)}, ["4 channels"]),
        ({"train_images": np.full((20, 28, 30), "x")}, ["must be numbers"]),
        ({"train_images": X[:, :, :20]}, ["pixels"]),
    ],
)
def test_one_true_sentence(tmp_path, change, words):
    refused(tmp_path, *words, **change)


def test_floats_by_a_stated_window(tmp_path):
    _, made = take_in(tmp_path, {"intensity": "0,1"}, train_images=X / 255, test_images=T / 255)
    assert np.array_equal(made["train_images"][:, 0], X)
    report, made = take_in(
        tmp_path,
        {"intensity": "0%,100%"},
        train_images=X.astype(np.uint16) * 16,
        test_images=T.astype(np.uint16) * 16,
    )
    assert made["train_images"].min() == 0
    assert made["train_images"].max() == 255
    assert "is black, white" in report.made


def test_another_size_is_resized_for_a_node(tmp_path):
    node = {"class_names": ("a", "b"), "image_shape": (3, 64, 64), "resize": "stretch"}
    report, made = take_in(tmp_path, node)
    assert made["train_images"].shape == (20, 3, 64, 64)
    assert '30 images were resized (resize="stretch")' in report.made


@pytest.mark.parametrize("first", [1, 3, 7])
def test_labels_that_do_not_count_from_0_are_told(tmp_path, first):
    """As files that were made for Matlab have them: nothing is guessed, a class is empty."""
    report, _ = take_in(tmp_path, train_labels=Y + first, test_labels=Y[:10] + first)
    assert "class 0 has no training image (labels count from 0)" in report.warnings[0]
    assert take_in(tmp_path)[0].warnings == []


def test_duplicates_are_told(tmp_path):
    images = X.copy()
    images[1] = images[0]
    report, _ = take_in(tmp_path, train_images=images)
    assert "more than one label" in report.errors[0]
    assert "train_images[0]" in report.errors[0]


def test_an_official_file_is_taken_as_it_is(tmp_path):
    """Official files do hold pictures twice; they stay as they are, without a report."""
    images = X.copy()
    images[1] = images[0]
    np.savez(tmp_path / "x.npz", **{**GOOD, "train_images": images})
    folder = tmp_path / "out"
    folder.mkdir()
    assert write_archive(tmp_path / "x.npz", ["no", "yes"], folder) == ["no", "yes"]
    assert np.array_equal(np.load(folder / "train_images.npy")[:, 0], images)
    assert not (folder / "report.json").exists()


def test_a_broken_download_says_what_to_do(tmp_path):
    (tmp_path / "pathmnist.npz").write_text("<html>503</html>")
    with pytest.raises(DataError, match=r"damaged.*; remove it and run: fedadb data pathmnist"):
        write_archive(tmp_path / "pathmnist.npz", ["no", "yes"], tmp_path)
