"""SVHN and CIFAR in their real formats on disk, small; nobody downloads from outside."""

import functools
import pickle
import tarfile
import threading
from hashlib import md5
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torchvision.datasets.utils as torchvision_utils
from official_formats import (
    MAKERS,
    make_cifar,
    make_svhn,
    refused,
    reopen,
    same,
)
from torchvision.datasets import CIFAR10, SVHN

pytestmark = pytest.mark.usefixtures("home")


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
