"""SVHN, CIFAR, CINIC-10 and PACS in their real formats on disk, small; nobody downloads."""

import functools
import pickle
import tarfile
import threading
from hashlib import md5
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
import torchvision.datasets.utils as torchvision_utils
from helpers import read_csv, read_json, serve
from official_formats import (
    MAKERS,
    PACS_CLASSES,
    make_cifar,
    make_cinic10,
    make_pacs,
    make_svhn,
    save_image,
)
from safetensors.torch import load_file
from torch.nn import functional as F
from torchvision.datasets import CIFAR10, SVHN

from fedadb_app.config import RunConfig
from fedadb_app.data.clients import PartitionClaim, client_data, partition_of, server_dataset
from fedadb_app.data.registry import preparation_of
from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import ConfigError, DataError
from fedadb_app.models.classifier import ModelSpec, build_classifier
from strategies.registry import METHODS


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A folder for official files, and a cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    open_dataset.cache_clear()
    partition_of.cache_clear()
    yield tmp_path / "home"
    open_dataset.cache_clear()
    partition_of.cache_clear()


def reopen(name, home, download=False):
    open_dataset.cache_clear()
    return open_dataset(name, str(home), download=download)


def refused(name, home, *words, download=False):
    with pytest.raises(DataError) as caught:
        reopen(name, home, download)
    message = str(caught.value)
    assert "\n" not in message
    for word in (f'"{name}"', *words):
        assert str(word) in message
    assert not list(home.parent.glob("cache/fedadb/prepared/*/meta.json"))


def same(array, expected):
    assert array.dtype == expected.dtype
    assert np.array_equal(array, expected)


# --- torchvision's formats ------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
def test_every_image_keeps_its_label(home, monkeypatch, name):
    made, names = MAKERS[name](home, monkeypatch)
    data = reopen(name, home)
    assert data.class_names == tuple(names)
    assert isinstance(data.train_images, np.memmap)
    assert data.train_domains is None
    for part, (images, labels) in made.items():
        same(getattr(data, f"{part}_images"), images)
        same(getattr(data, f"{part}_labels"), labels)


@pytest.mark.parametrize("name", MAKERS)
def test_a_file_that_is_not_the_official_one_is_not_read(home, monkeypatch, name):
    MAKERS[name](home, monkeypatch)
    file = next(p for p in sorted(home.rglob("*")) if p.is_file() and "meta" not in p.name)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    refused(name, home, home, "not the official ones")


def test_a_strangers_pickle_is_not_loaded(home, monkeypatch, tmp_path):
    class Trap:
        def __reduce__(self):
            return (tmp_path / "sprung").mkdir, ()

    make_cifar(home, monkeypatch)
    (home / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps(Trap()))
    refused("cifar10", home)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", MAKERS)
def test_a_client_never_downloads(home, name):
    refused(name, home, "does not exist on this machine", f"fedadb data {name}")


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_args):
        pass


@pytest.fixture
def address(tmp_path, monkeypatch):
    """A web server on this machine for the files below tmp_path/far."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = functools.partial(QuietHandler, directory=tmp_path / "far")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def serve_cifar(tmp_path, monkeypatch, address):
    """Put the official archive where torchvision looks for it."""
    make_cifar(tmp_path / "far", monkeypatch)
    archive = tmp_path / "far" / CIFAR10.filename
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "far" / CIFAR10.base_folder, CIFAR10.base_folder)
    monkeypatch.setattr(CIFAR10, "url", f"{address}/{CIFAR10.filename}")
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5(archive.read_bytes()).hexdigest())
    return archive


def test_an_archive_is_fetched_once_and_unpacked(home, tmp_path, monkeypatch, address):
    archive = serve_cifar(tmp_path, monkeypatch, address)
    assert reopen("cifar10", home, download=True).num_classes == 10
    archive.unlink()
    assert reopen("cifar10", home, download=True).num_classes == 10
    assert reopen("cifar10", home).train_images.shape == (50, 3, 32, 32)
    assert [p.name for p in home.iterdir() if p.suffix != ".lock"] == ["cifar-10-batches-py"]


def test_the_other_files_of_a_half_filled_folder_are_fetched(home, tmp_path, monkeypatch, address):
    serve_cifar(tmp_path, monkeypatch, address)
    reopen("cifar10", home, download=True)
    (home / "cifar-10-batches-py" / "data_batch_3").unlink()
    assert reopen("cifar10", home, download=True).num_classes == 10


def test_an_archive_with_another_checksum_is_refused(home, tmp_path, monkeypatch, address):
    serve_cifar(tmp_path, monkeypatch, address)
    monkeypatch.setattr(CIFAR10, "tgz_md5", "0" * 32)
    refused("cifar10", home, home / "cifar-10-batches-py", "by hand", download=True)
    assert [p for p in home.iterdir() if p.suffix != ".lock"] == []


def test_svhn_is_fetched_file_by_file(home, tmp_path, monkeypatch, address):
    made, _ = make_svhn(tmp_path / "far", monkeypatch)
    far = {
        part: [f"{address}/{file}", file, checksum]
        for part, (_, file, checksum) in SVHN.split_list.items()
        if part in made
    }
    monkeypatch.setattr(SVHN, "split_list", SVHN.split_list | far)
    same(reopen("svhn", home, download=True).test_images, made["test"][0])
    assert torchvision_utils.check_integrity(home / "test_32x32.mat", far["test"][2])


# --- folders --------------------------------------------------------------------------------


def test_cinic10_trains_on_the_training_part_alone_as_the_lineage(home):
    made, classes = make_cinic10(home)
    data = reopen("cinic10", home)
    assert data.class_names == classes
    same(data.train_images, made["train"].transpose(0, 3, 1, 2))
    same(data.test_images, made["test"].transpose(0, 3, 1, 2))
    assert data.train_labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert data.test_labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_a_grey_png_among_coloured_ones_is_made_rgb(home):
    made, _ = make_cinic10(home)
    grey = made["train"][0][:, :, 0]
    save_image(home / "cinic10" / "train" / "airplane" / "0.png", grey)
    assert np.array_equal(reopen("cinic10", home).train_images[0], np.stack([grey] * 3))


@pytest.mark.parametrize(("name", "folder"), [("cinic10", "cinic10"), ("pacs_64", "pacs")])
@pytest.mark.parametrize("download", [True, False])
def test_what_is_not_downloaded_is_asked_for(home, name, folder, download):
    refused(name, home, home / folder, "not downloaded", download=download)


def test_pacs_images_have_their_class_and_their_domain(home):
    make_pacs(home)
    data = reopen("pacs_64", home)
    assert data.class_names == PACS_CLASSES
    assert data.image_shape == (3, 64, 64)
    assert np.array_equal(data.train_images[:, 0, 0, 0], 60 * data.train_domains)
    for part in ("train", "test"):
        images, labels = getattr(data, f"{part}_images"), getattr(data, f"{part}_labels")
        assert np.array_equal(images[:, 1, 5, 5], 60 * labels)
    # A fifth of each class of each domain is the test part's: 4 of 20; of the dogs 4, 5, 6, 7.
    for d in range(4):
        labels = data.test_labels[data.test_images[:, 0, 0, 0] == 60 * d]
        assert np.bincount(labels).tolist() == [4 + d, 4, 4, 4]


def test_pacs_has_inceptions_size_unless_another_is_named(home):
    make_pacs(home, images=2)
    assert reopen("pacs", home).image_shape == (3, 224, 224)
    assert reopen("pacs_128", home).image_shape == (3, 128, 128)


def test_a_domain_without_a_class(home):
    make_pacs(home, images=2)
    for file in (home / "pacs" / "photo" / "guitar").iterdir():
        file.unlink()
    (home / "pacs" / "photo" / "guitar").rmdir()
    with pytest.raises(DataError, match=r"photo has the class folders .*every domain"):
        reopen("pacs_64", home)


def test_clients_of_pacs_hold_their_share_of_one_domain(home):
    make_pacs(home)
    config = RunConfig(
        dataset="pacs_64", data_dir=str(home), partition="domain", classes_per_client=2
    )
    data = server_dataset(config)
    seen = []
    for k in range(8):
        local = client_data(config, PartitionClaim(k, 8), torch.device("cpu")).train
        assert set(data.train_domains[local.positions]) == {k // 2}
        assert int((local.class_counts > 0).sum()) == 2
        seen += local.positions.tolist()
    assert sorted(seen) == list(range(len(data.train_labels)))  # 2 clients x 2 classes: all 4


def test_other_data_sets_have_no_domains():
    config = RunConfig(dataset="digits", partition="domain")
    with pytest.raises(ConfigError, match=r'partition="domain" needs .*dataset="digits"'):
        partition_of(config, 4)


# --- whole runs -----------------------------------------------------------------------------


def run(home, tmp_path, **values):
    """Two rounds of the whole app; return the last anchors."""
    shared = {
        "data-dir": str(home),
        "output-dir": str(tmp_path / "runs"),
        "run-name": "run",
        "num-server-rounds": 2,
        "local-epochs": 1,
        "augment": True,
        "fedadb.anchor-steps": 2,
    }
    serve(shared | values, clients=4)
    folder = tmp_path / "runs" / "run"
    assert read_json(folder / "summary.json")["status"] == "completed"
    assert [row["failures"] for row in read_csv(folder / "rounds.csv")] == ["0", "0"]
    return load_file(folder / "anchors.safetensors")["images"]


def test_a_run_on_cifar_keeps_to_its_own_normalisation(home, tmp_path, monkeypatch):
    made, _ = make_cifar(home, monkeypatch)
    images = run(home, tmp_path, dataset="cifar10", model="lenet")
    preparation = preparation_of("cifar10")
    low, high = (bound.flatten() for bound in preparation.valid_range)
    for channel in range(3):  # a standard normal start is cut off on both sides
        assert images[:, channel].min() == low[channel]
        assert images[:, channel].max() == high[channel]
    # The server's evaluation of the last model, by hand.
    model = build_classifier(
        ModelSpec("lenet", "batch", (3, 32, 32), 10), 0, METHODS["fedadb"].heads
    )
    model.load_state_dict(load_file(tmp_path / "runs" / "run" / "model.safetensors"))
    pixels, labels = map(torch.from_numpy, made["test"])
    with torch.no_grad():
        loss = F.cross_entropy(model(preparation.normalise(pixels, torch.device("cpu"))), labels)
    last = read_csv(tmp_path / "runs" / "run" / "rounds.csv")[-1]
    assert float(last["loss"]) == pytest.approx(float(loss), abs=1e-5)


def test_a_clients_images_are_prepared_as_its_data_set_asks(home, monkeypatch):
    made, _ = make_cifar(home, monkeypatch)
    config = RunConfig(dataset="cifar10", data_dir=str(home), evaluate="clients")
    server_dataset(config)
    client = client_data(config, PartitionClaim(0, 2), torch.device("cpu"))
    for part in (client.train, client.held_out):
        pixels = torch.from_numpy(made["train"][0])[part.positions]
        expected = preparation_of("cifar10").normalise(pixels, part.device)
        assert torch.equal(part.load(torch.arange(len(part))), expected)


@pytest.mark.slow
def test_inception_on_the_domains_of_pacs(home, tmp_path):
    make_pacs(home, images=15)
    run(home, tmp_path, dataset="pacs_64", model="googlenet", partition="domain")
    assert [
        sum(count > 0 for count in client["class_counts"])
        for client in read_json(tmp_path / "runs" / "run" / "partition.json")["clients"]
    ] == [2, 2, 2, 2]
