"""Official files are fetched once, checked, and in place only when whole."""

import http.client
import threading
import urllib.error
from pathlib import Path

import pytest
import torchvision.datasets.utils as torchvision_utils
from image_files import arrays, files_in, refused, reopen, save
from medmnist.info import INFO

from fedadb_app.data.prepared import cache_folder
from fedadb_app.data.sources import open_dataset

pytestmark = pytest.mark.usefixtures("cache")


def downloader(monkeypatch, action):
    """Put `action(target)` in the place of torchvision's download; return the calls."""
    calls = []

    def download_url(url, root, filename=None, md5=None, max_redirect_hops=3):
        calls.append((url, filename, md5))
        action(Path(root) / filename)

    monkeypatch.setattr(torchvision_utils, "download_url", download_url)
    return calls


@pytest.mark.parametrize(("name", "suffix"), [("pathmnist", ""), ("pathmnist_128", "_128")])
@pytest.mark.parametrize("in_cache", [True, False])
def test_a_download_is_kept(tmp_path, monkeypatch, name, suffix, in_cache):
    folder = cache_folder() if in_cache else tmp_path / "not" / "yet"
    calls = downloader(monkeypatch, lambda target: save(target, arrays()))
    data_dir = "" if in_cache else str(folder)
    assert reopen(name, data_dir, download=True).num_classes == 9
    info = INFO["pathmnist"]
    assert calls == [(info[f"url{suffix}"], f"{name}.npz", info[f"MD5{suffix}"])]
    assert (folder / f"{name}.npz").is_file()
    # Now it is there, for the server as for the clients.
    assert reopen(name, data_dir, download=True).num_classes == 9
    assert reopen(name, data_dir).num_classes == 9
    assert len(calls) == 1


@pytest.mark.parametrize(
    "error",
    [
        urllib.error.URLError("no route to host"),
        RuntimeError("File not found or corrupted."),  # torchvision: wrong checksum
        http.client.IncompleteRead(b"", 100),
        TimeoutError("timed out"),
        None,  # reports success, but there is no file
    ],
)
def test_a_failed_download_leaves_nothing(tmp_path, monkeypatch, error):
    folder = tmp_path / "data"

    def fail(target):
        if error is not None:
            target.write_bytes(b"half a file")
            raise error

    calls = downloader(monkeypatch, fail)
    refused(
        "pathmnist", '"pathmnist"', folder / "pathmnist.npz", "by hand", data_dir=folder, download=1
    )
    assert len(calls) == 1
    assert files_in(folder) == []
    assert [p for p in folder.iterdir() if p.is_dir()] == []
    # And the next try is a fresh one.
    downloader(monkeypatch, lambda target: save(target, arrays()))
    assert reopen("pathmnist", str(folder), download=True).num_classes == 9


def test_a_file_appears_only_when_complete(tmp_path, monkeypatch):
    def check(target):
        assert not (tmp_path / "pathmnist.npz").exists()
        save(target, arrays())
        assert not (tmp_path / "pathmnist.npz").exists()

    downloader(monkeypatch, check)
    open_dataset("pathmnist", str(tmp_path), download=True)
    assert [f.name for f in files_in(tmp_path) if f.parent == tmp_path] == ["pathmnist.npz"]


def test_two_at_once_download_once(tmp_path, monkeypatch):
    started, second_waits = threading.Barrier(2), threading.Event()

    def slow(target):
        second_waits.wait(0.5)  # long enough for the other to look for the file
        save(target, arrays())

    calls = downloader(monkeypatch, slow)
    results = []

    def work():
        started.wait()
        results.append(open_dataset("pathmnist", str(tmp_path), download=True).num_classes)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [9, 9]
    assert len(calls) == 1


def test_a_download_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "data"
    downloader(monkeypatch, lambda target: save(target, arrays()))
    refused("pathmnist", folder / "pathmnist.npz", data_dir=folder, download=True)
