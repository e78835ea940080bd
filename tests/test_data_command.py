"""`fedadb data`: the report, as a node or as the server, and what prepared copies there are."""

import os
import shutil

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedadb_app.cli.main import main
from fedadb_app.client_state import NOTES, Ancestor, refuse_changed_data
from fedadb_app.data.prepared import cache_folder
from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import DataError

pytestmark = pytest.mark.usefixtures("own_cache")

NODE = 'classes="a,b" image-shape="1x28x28"'


def call(*words):
    open_dataset.cache_clear()
    result = CliRunner().invoke(main, ["data", *map(str, words)], terminal_width=500)
    return result.exit_code, result.output


def hospital(root, classes="ab", count=5, size=(28, 28)):
    rng = np.random.default_rng(0)
    for name in classes:
        (root / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(rng.integers(0, 256, size, np.uint8)).save(root / name / f"{i}.png")
    return root


def test_a_folder_is_reported_on(tmp_path):
    code, said = call(hospital(tmp_path / "h"))
    assert code == 0
    for line in (
        "found: 10 files; read: 10, which give 10 images",
        "formats: PNG 10",
        "train: 8 images; per class: a 4, b 4",
        "test: 2 images; per class: a 1, b 1",
        "patients: not known of 10 files",
    ):
        assert line in said


def test_a_node_looks_at_its_own_folder(tmp_path):
    root = hospital(tmp_path / "h", "b", size=(60, 40))
    code, said = call(root, "-c", NODE)
    assert code == 0
    assert 'made: 28x28 pixels, 1 channel(s); 5 images were resized (resize="fit")' in said
    assert "train: 5 images; per class: a 0, b 5" in said


def test_what_is_refused_is_reported_on_too(tmp_path):
    root = hospital(tmp_path / "h")
    (root / "a" / "x.heic").write_bytes(b"x")
    code, said = call(root)
    assert code == 1
    assert "left out: 1 .heic (a 1; as a/x.heic)" in said
    assert "error: " in said
    code, said = call(root, "-c", 'ignore="*.heic"')
    assert code == 0
    assert "left out: 1 ignored" in said


def test_errors_are_said_and_end_with_1(tmp_path):
    root = hospital(tmp_path / "h")
    shutil.copy(root / "a" / "0.png", root / "b" / "copy.png")
    code, said = call(root)
    assert code == 1
    assert said.count("2 images are there under more than one label") == 2  # report and sentence


def test_old_copies_are_listed_and_removed(tmp_path):
    kept, changed, gone = (hospital(tmp_path / name) for name in ("kept", "changed", "gone"))
    for root in (kept, changed, gone):
        assert call(root)[0] == 0
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(changed / "a" / "new.png")
    call(changed)
    shutil.rmtree(gone)
    prepared = cache_folder() / "prepared"
    (prepared / "old-0123").mkdir()  # of a version that wrote no meta.json of today's kind
    assert len([p for p in prepared.iterdir() if p.is_dir()]) == 5
    code, said = call("--clean")
    assert code == 0
    assert said.count("kept\n") == 2
    for why in ("its files have changed since", "its files are gone", "of another version"):
        assert said.count(f"removed: {why}") == 1
    assert len([p for p in prepared.iterdir() if p.is_dir()]) == 2
    before = {p: os.stat(p).st_mtime_ns for p in prepared.glob("*/meta.json")}
    call(kept)
    call(changed)
    assert {p: os.stat(p).st_mtime_ns for p in prepared.glob("*/meta.json")} == before


def test_notes_of_images_that_are_gone_are_removed(tmp_path):
    """What a run was trained on is needed to resume it, so a note stays while its images do."""
    kept, gone = (hospital(tmp_path / name) for name in ("kept", "gone"))
    notes = cache_folder() / NOTES
    for run, root in ((1, kept), (2, gone), (3, gone)):
        refuse_changed_data(notes, root, "0" * 64, run, ())
    (notes / "4-old").write_text("0" * 64)  # of a version that noted no path
    shutil.rmtree(gone)
    code, said = call("--clean")
    assert code == 0
    assert (
        "4 notes of what runs were trained on here (a resumed run needs its own), 2 removed" in said
    )
    assert sorted(note.name[:2] for note in notes.iterdir()) == ["1-", "4-"]
    with pytest.raises(DataError, match="not the images of the run that is resumed"):
        refuse_changed_data(notes, kept, "1" * 64, 5, [Ancestor(1, 3)])


def test_nothing_to_do():
    code, said = call()
    assert code == 1
    assert "--clean" in said
    assert call("--clean") == (0, "0 prepared copies, 0.0 MiB freed\n")
