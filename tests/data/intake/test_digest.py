"""Whether prepared data are still those of the files."""

import os
import shutil
import time

import numpy as np
import pytest

from fedadb_app.data.intake.digest import content_digest, file_stamp
from fedadb_app.data.intake.find import find


def stamp(hospital, facts=None):
    tree = find(hospital.root)
    named = [("/".join(f.relative), f.status) for f in tree.files]
    return file_stamp(named, hospital.root, facts)


@pytest.fixture
def twins(hospital):
    """Two classes of bitmaps of the same names, sizes and times."""
    for label, value in (("a", 10), ("b", 200)):
        for i in range(5):
            path = hospital.image(f"{label}/{i}.bmp", np.full((28, 28), value, np.uint8))
            os.utime(path, (1.7e9, 1.7e9))
    return hospital


def swap(one, two):
    spare = one.with_name("spare")
    one.rename(spare)
    two.rename(one)
    spare.rename(two)


def copied(hospital):
    target = hospital.root / "a/0.bmp"
    shutil.copy2(hospital.root / "b/0.bmp", target)  # which keeps the time


def content_only(hospital):
    target = hospital.root / "a/0.bmp"
    raw = target.read_bytes()
    target.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    os.utime(target, (1.7e9, 1.7e9))


CHANGES = {
    "folders swapped": lambda h: swap(h.root / "a", h.root / "b"),
    "two files swapped": lambda h: swap(h.root / "a/0.bmp", h.root / "b/0.bmp"),
    "a copy with the time kept": copied,
    "a pixel changed, the time set back": content_only,
    "a file more": lambda h: h.image("a/9.bmp"),
    "a file less": lambda h: (h.root / "a/3.bmp").unlink(),
    "another name": lambda h: (h.root / "a/3.bmp").rename(h.root / "a/7.bmp"),
    "another class": lambda h: (h.root / "a/3.bmp").rename(h.root / "b/7.bmp"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(twins, change):
    before = stamp(twins)
    assert stamp(twins) == before
    CHANGES[change](twins)
    assert stamp(twins) != before


def test_other_facts_are_another_stamp(twins):
    assert stamp(twins, "fit") != stamp(twins, "crop")


def test_the_content_is_what_it_is_wherever_it_lies(hospital, tmp_path):
    hospital.fill("a", "b")
    digests = []
    for number in range(2):
        hospital.take_in()
        digests.append(content_digest(tmp_path / f"out{number}"))
    assert digests[0] == digests[1]
    images = np.load(tmp_path / "out1" / "train_images.npy")
    images[0, 0, 0, 0] ^= 1
    np.save(tmp_path / "out1" / "train_images.npy", images)
    assert content_digest(tmp_path / "out1") != digests[0]


def test_ten_thousand_files_are_looked_at_quickly(hospital):
    """Empty files will do: what costs is to list them and to ask for their status."""
    for folder in range(10):
        (hospital.root / f"{folder}").mkdir()
        for i in range(1000):
            (hospital.root / f"{folder}/{i}.png").touch()
    stamp(hospital)
    started = time.process_time()
    stamp(hospital)
    assert time.process_time() - started < 2  # about 0.2 s; other programs may run, too
