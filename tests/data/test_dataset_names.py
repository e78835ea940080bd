"""What a data set is called: names, MedMNIST's flags, paths, and what is none of them."""

import pytest
from image_files import arrays, refused, reopen, save

from fedadb_app.data.prepared import cache_folder
from fedadb_app.data.sources import open_dataset

pytestmark = pytest.mark.usefixtures("cache")


@pytest.mark.parametrize(
    "name",
    [
        "digit",
        "PathMNIST",
        "pathmnist_32",
        "pathmnist_",
        "pathmnist_64_",
        "_64",
        "nodulemnist3d",  # volumes, not images
        "organmnist3d_64",
    ],
)
def test_unknown_names(name):
    refused(name, f'"{name}"', "digits", "pathmnist", "absolute path")
    refused(name, f'"{name}"', download=True)


@pytest.mark.parametrize("name", ["chestmnist", "chestmnist_64"])
def test_several_labels_an_image_are_refused(name, tmp_path):
    save(tmp_path / f"{name}.npz", arrays())
    refused(name, f'"{name}"', "several labels", data_dir=tmp_path)


@pytest.mark.parametrize("name", ["data/x.npz", "x.npz", "./folder"])
def test_relative_paths_are_refused(name, tmp_path, monkeypatch):
    # Flower's processes have working directories of their own.
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "x.npz", arrays())
    refused(name, f'"{name}"', "absolute path")


def test_a_path_to_nothing(tmp_path):
    for path in (tmp_path / "absent.npz", tmp_path / "absent"):
        refused(path, path, "no such file")
        refused(path, path, download=True)


def test_a_home_relative_path_is_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    save(tmp_path / "x.npz", arrays())
    assert len(open_dataset("~/x.npz", "").train_images) == 9


def test_a_client_does_not_download(tmp_path):
    refused("pathmnist", tmp_path / "pathmnist.npz", "fedadb data pathmnist", data_dir=tmp_path)
    refused("pathmnist_64", tmp_path / "pathmnist_64.npz", data_dir=tmp_path)
    refused("pathmnist", cache_folder() / "pathmnist.npz")


# --- MedMNIST flags -----------------------------------------------------------------------------


def test_a_flag_is_read_from_data_dir_with_its_class_names(tmp_path):
    made = arrays(channels=(3,), classes=2)
    save(tmp_path / "pathmnist.npz", made)
    data = open_dataset("pathmnist", str(tmp_path))
    assert data.num_classes == 9
    assert data.class_names[0] == "adipose"
    assert data.class_names[8] == "colorectal adenocarcinoma epithelium"
    assert data.train_images.shape == (9, 3, 28, 28)
    assert data.name == "pathmnist"


def test_a_flag_with_a_size(tmp_path):
    save(tmp_path / "pathmnist_64.npz", arrays(side=(64, 64), channels=(3,)))
    data = open_dataset("pathmnist_64", str(tmp_path))
    assert data.image_shape == (3, 64, 64)
    assert data.num_classes == 9


def test_a_flag_and_the_path_of_its_file_have_their_own_class_names(tmp_path):
    path = save(tmp_path / "pathmnist.npz", arrays())
    assert open_dataset(str(path), "").class_names == ("0", "1", "2")
    assert open_dataset("pathmnist", str(tmp_path)).num_classes == 9
    assert reopen(str(path), "").class_names == ("0", "1", "2")


def test_a_label_beyond_the_classes(tmp_path):
    made = arrays()
    made["test_labels"][1] = 9
    path = save(tmp_path / "pathmnist.npz", made)
    refused("pathmnist", path, "label 9", "9 classes", data_dir=tmp_path)
    made["test_labels"][1] = 8
    save(path, made)
    assert reopen("pathmnist", str(tmp_path)).test_labels.max() == 8
