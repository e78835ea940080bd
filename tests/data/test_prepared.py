"""The prepared form: made once, whole or not at all, by several processes, on full disks."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from helpers import REPOSITORY
from image_files import arrays, files_in, plain_folder, reopen, save

from fedadb_app.data.prepared import cache_folder
from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import DataError

pytestmark = pytest.mark.usefixtures("cache")


def test_data_are_prepared_once(cache, tmp_path):
    npz = save(tmp_path / "x.npz", arrays())
    for name in ("digits", str(npz)):
        reopen(name, "")
    before = {f: (f.stat().st_ino, f.stat().st_mtime_ns) for f in files_in(cache)}
    for name in ("digits", str(npz)):
        reopen(name, "")
    assert {f: (f.stat().st_ino, f.stat().st_mtime_ns) for f in files_in(cache)} == before


def test_writing_into_the_images_does_not_reach_the_other_workers(cache):
    data = open_dataset("digits", "")
    original = int(data.train_images[0, 0, 14, 14])
    data.train_images[0, 0, 14, 14] = 255 - original
    assert reopen("digits", "").train_images[0, 0, 14, 14] == original


@pytest.mark.parametrize("same_size", [True, False])
def test_a_replaced_file_is_prepared_anew(tmp_path, same_size):
    path = save(tmp_path / "x.npz", arrays(seed=0))
    old = open_dataset(str(path), "").train_images[:].copy()
    written = path.stat().st_mtime_ns
    made = arrays(seed=1, train=6 if same_size else 8)
    save(path, made)
    os.utime(path, ns=(written + 10**9, written + 10**9) if same_size else (written, written))
    new = reopen(str(path), "").train_images
    assert not np.array_equal(new, old)
    assert np.array_equal(new[:6, 0], made["train_images"][:6])


def test_two_files_of_one_name_are_two_data_sets(tmp_path):
    one, two = (save(tmp_path / d / "x.npz", arrays(seed=s)) for d, s in (("a", 0), ("b", 1)))
    os.utime(one, ns=(0, 0))
    os.utime(two, ns=(0, 0))
    assert one.stat().st_size == two.stat().st_size
    assert not np.array_equal(
        open_dataset(str(one), "").train_images, open_dataset(str(two), "").train_images
    )


WITHOUT_TORCH = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from pathlib import Path
from fedadb_app.data.intake.options import IntakeOptions
from fedadb_app.data.own_images import own_source
from fedadb_app.data.prepared import cache_folder, open_source

def open_images(name):  # what open_dataset does, but for torch, whose import takes seconds
    return open_source(name, own_source(Path(name), IntakeOptions()))
"""


def in_subprocess(code, *args, prefix=()):
    """Start Python with this project importable, and this test's cache."""
    command = [*prefix, sys.executable, "-c", WITHOUT_TORCH + code, *map(str, args)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ
    )


def output_of(process):
    try:
        return process.communicate(timeout=60)[0]
    finally:
        process.kill()


WATCHED = """
import os, sys, time, traceback
from pathlib import Path
import numpy as np

me, start, *names = sys.argv[1:]
prepared = cache_folder() / "prepared"
busy, seen = False, 0

def watch(event, args):
    # At each file operation of the preparation: what claims to be ready must be complete.
    global busy, seen
    if busy or not (event == "open" or event.startswith(("os.", "shutil."))):
        return
    busy = True
    try:
        for meta in prepared.glob("*/meta.json"):
            for part in ("train", "test"):
                images = np.load(meta.parent / f"{part}_images.npy", mmap_mode="r")
                assert len(np.load(meta.parent / f"{part}_labels.npy")) == len(images)
                assert (images[-1] != 0).any()
            assert meta.read_text().endswith("}")
            seen += 1
    except Exception:
        traceback.print_exc()
        os._exit(1)  # an exception might be taken for a failed file operation and be retried
    busy = False

(Path(start) / me).touch()
while len(list(Path(start).iterdir())) < 2:
    time.sleep(0.01)
sys.addaudithook(watch)
for name in names:
    data = open_images(name)
    print(name, len(data.train_images), data.train_images.sum(), data.train_labels.sum())
assert seen > 0
"""


@pytest.mark.slow
def test_two_processes_prepare_at_once(tmp_path):
    start = tmp_path / "start"
    start.mkdir()
    files = [save(tmp_path / f"{s}.npz", arrays(train=2000, seed=s)) for s in range(3)]
    names = list(map(str, files))
    both = [in_subprocess(WATCHED, me, start, *names) for me in ("one", "two")]
    outputs = [output_of(process) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    expected = ""
    for name in names:
        data = open_dataset(name, "")
        images, labels = data.train_images.sum(), data.train_labels.sum()
        expected += f"{name} {len(data.train_images)} {images} {labels}\n"
    assert outputs == [expected, expected]
    # One prepared folder a source; no scratch folder is left.
    assert len([p for p in (cache_folder() / "prepared").iterdir() if p.is_dir()]) == 3


@pytest.mark.parametrize("below", ["", "fedadb", "fedadb/prepared"])
def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch, below):
    base = tmp_path / "blocked"
    blocker = base / below
    blocker.parent.mkdir(parents=True, exist_ok=True)
    blocker.write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(base))
    with pytest.raises(DataError) as caught:
        reopen("digits", "")
    message = str(caught.value)
    assert "\n" not in message
    assert str(base / "fedadb" / "prepared") in message


ON_A_FULL_DISK = """
import sys
from fedadb_app.errors import DataError
try:
    open_images(sys.argv[1])
except DataError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize("kind", [pytest.param("npz", marks=pytest.mark.slow), "folder"])
def test_a_full_disk_is_a_sentence(tmp_path, kind):
    # A disk of one megabyte, in a mount namespace of its own, where the system allows that.
    small = tmp_path / "cache"
    small.mkdir()
    mount = f'mount -t tmpfs -o size=1m tmpfs "{small}" && exec "$@"'
    prefix = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], check=False).returncode:
        pytest.skip("no mount namespaces here")
    if kind == "npz":
        source = save(tmp_path / "x.npz", arrays(train=2000))
    else:
        source = plain_folder(tmp_path / "x", count=12, size=(224, 224))
    process = in_subprocess(ON_A_FULL_DISK, source, prefix=prefix)
    output = output_of(process)
    assert process.returncode == 0, output
    assert output.startswith("refused:")
    assert "No space left" in output
    assert str(small) in output
