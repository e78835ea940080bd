"""What is left out is allowed by name or a refusal; parts and classes by their folders' names."""

import os
import unicodedata

import numpy as np
import pytest

from fedadb_app.data.intake.find import find
from fedadb_app.data.intake.names import part_of, shown

HIDDEN = [".ipynb_checkpoints", ".thumbnails", ".Trash-1000/files", "@eaDir", ".git/annex"]
HIDDEN += ["__MACOSX", "$RECYCLE.BIN", "#recycle", ".AppleDouble", "lost+found", "A/.snapshot"]


@pytest.mark.parametrize("folder", HIDDEN)
@pytest.mark.parametrize("top", ["", "a/"])
def test_hidden_folders_are_no_images_of_a_class(hospital, folder, top):
    hospital.fill("a", "b")
    if folder.startswith("A/"):
        folder = folder[2:] if not top else f"patient/{folder[2:]}"
    hospital.image(f"{top}{folder}/0.png")
    report, _ = hospital.take_in()
    assert report.images == 10
    left = {**report.left_out.get("hidden", {}), **report.left_out.get("harmless by name", {})}
    assert sum(left.values()) == 1
    assert any("harmless by name: .*" in line for line in report.lines())


@pytest.mark.parametrize(
    "name", ["a/._0.png", ".DS_Store", "a/Thumbs.db", "b/desktop.ini", "README.md", "a/notes.TXT"]
)
def test_harmless_files(hospital, name):
    hospital.fill("a", "b")
    hospital.path(name).write_bytes(b"\0\5\26\7 no image")
    report, _ = hospital.take_in()
    assert report.images == 10


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a/x.heic", "1 .heic"),
        ("a/x.png.bak", "1 .bak"),
        ("b/scan.nrrd", "1 .nrrd"),
        ("a/report.pdf", "1 .pdf"),
        ("a/deep/er/x.xml", "1 .xml"),
        ("unsorted.png", "1 beside the class folders"),
        ("a/IM0001", "1 without suffix"),
        ("a/1.2.840", "1 without suffix"),
        ("masks.zip", "1 .zip"),
    ],
)
def test_anything_else_is_refused_with_a_count_and_an_example(hospital, name, kind):
    hospital.fill("a", "b")
    hospital.path(name).write_bytes(b"\0" * 700)
    hospital.refused("1 files are not read", kind, name, "ignore=")
    pattern = name.rpartition("/")[2]
    report, _ = hospital.take_in(ignore=f"other, {pattern.upper()}")
    assert report.images == 10
    assert report.left_out["ignored"] == {"a" if "a/" in name else "b" if "b/" in name else "": 1}


def test_what_is_left_out_is_counted_by_kind_and_class(hospital):
    hospital.fill("a", "b")
    for name in ("a/1.heic", "a/2.heic", "b/1.heic", "b/x.xml", "loose.png"):
        hospital.path(name).write_bytes(b"x")
    error = hospital.refused("5 files are not read: 3 .heic, 1 .xml, 1 beside the class folders")
    assert error.report.left_out == {
        ".heic": {"a": 2, "b": 1},
        ".xml": {"b": 1},
        "beside the class folders": {"": 1},
    }
    assert error.report.found == 15


def test_folders_and_paths_can_be_ignored(hospital):
    hospital.fill("a", "b", "masks")
    hospital.path("a/raw/x.heic").write_bytes(b"x")
    hospital.path("b/raw/x.png").write_bytes(b"no image")
    report, made = hospital.take_in(ignore="masks,*/raw")
    assert report.class_names == ["a", "b"]
    assert len(made["train_labels"]) == 8


@pytest.mark.parametrize("special", ["x.png", "x", "x.xml"])
def test_a_pipe_is_not_opened(hospital, special):
    hospital.fill("a", "b")
    os.mkfifo(hospital.path(f"a/{special}"))
    hospital.refused("pipe, socket or device", f"a/{special}")


def test_links(hospital, tmp_path):
    hospital.fill("a", "b")
    (hospital.root / "b/again").symlink_to(hospital.root / "a")
    hospital.refused(hospital.root / "a", hospital.root / "b/again", "one folder")
    (hospital.root / "b/again").unlink()
    (hospital.root / "b/loop").symlink_to(hospital.root)
    hospital.refused("one folder", hospital.root / "b/loop")
    (hospital.root / "b/loop").unlink()
    (hospital.root / "b/9.png").symlink_to(tmp_path / "gone")
    hospital.refused("a link to nothing", hospital.root / "b/9.png")


# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [b"R\xf6ntgen", b"\xe9tude", b"CT\xff", b"a\nb"])
def test_a_class_name_that_is_no_text_is_refused_before_anything(hospital, name):
    hospital.fill("a")
    folder = os.fsencode(hospital.root) + b"/" + name
    os.mkdir(folder)
    hospital.image("a/0.png").rename(os.fsdecode(folder + b"/0.png"))
    said = str(hospital.refused("class folder", "rename it"))
    assert said.isprintable()


def test_a_file_name_that_is_no_text_is_read_and_shown(hospital):
    hospital.fill("a", "b")
    folder = os.fsencode(hospital.root / "a")
    os.rename(folder + b"/00.png", folder + b"/M\xfcller.png")
    assert hospital.take_in()[0].images == 10
    with open(folder + b"/M\xfcller.png", "wb") as file:
        file.write(b"no image")
    hospital.refused(r"M\xfcller.png cannot be read")


@pytest.mark.parametrize("name", ["Ödem", "Sjögren", "Å", "한글"])
def test_composed_and_decomposed_names_are_one(hospital, name):
    composed, apart = (unicodedata.normalize(form, name) for form in ("NFC", "NFD"))
    assert composed != apart
    hospital.fill(composed, apart, "other")
    report, made = hospital.take_in()
    assert sorted(report.class_names) == sorted([composed, "other"])
    label = report.class_names.index(composed)
    assert (made["train_labels"] == label).sum() == 8
    node, _ = hospital.take_in(class_names=("other", composed), image_shape=(1, 28, 28))
    assert node.parts["train"].per_class == {"other": 5, composed: 10}


def test_shown_names_are_printable():
    assert shown("a\nb") == r"a\nb"
    assert shown("M\udcfcller") == r"M\xfcller"
    assert shown("Ödem") == "Ödem"


# --- parts ------------------------------------------------------------------------------------


PART_NAMES = {
    "train": "train Training train_set TRAIN-DATA trainset",
    "val": "val valid Validation validation_set dev",
    "test": "test Test Testing test_images",
    None: "trainee testis valve intest device training2",
}


@pytest.mark.parametrize("part", PART_NAMES)
def test_names_of_parts(part):
    assert {part_of(name) for name in PART_NAMES[part].split()} == {part}


@pytest.mark.parametrize(
    "names",
    [
        ("Training", "Testing"),
        ("train_set", "test_set"),
        ("TRAIN", "TEST"),
        ("train data", "test data"),
    ],
)
def test_parts_by_other_names_are_no_classes(hospital, names):
    for part in names:
        hospital.fill(f"{part}/a", f"{part}/b", count=3)
    report, made = hospital.take_in()
    assert report.class_names == ["a", "b"]
    assert (len(made["train_labels"]), len(made["test_labels"])) == (6, 6)
    assert f"folder {names[0]} is the training part" in report.layout


@pytest.mark.parametrize("val", ["val", "valid", "Validation", "dev_set"])
def test_validation_images_are_trained_on(hospital, val):
    for part in ("train", val, "test"):
        hospital.fill(f"{part}/a", f"{part}/b", count=2)
    report, made = hospital.take_in()
    assert len(made["train_labels"]) == 8
    assert made["train_labels"].tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert f"folder {val} is the validation part, trained on" in report.layout
    node, _ = hospital.as_node()
    assert node.parts["train"].images == 8


@pytest.mark.parametrize(
    ("folders", "words"),
    [
        (["train/a", "test/a", "extra/a"], ["extra", "which are not"]),
        (["train/a", "Training/a", "test/a"], ["two folders for the train part"]),
        (["test/a", "val/a"], ["no folder train"]),
        (["train/a", "train/b"], ["no test image"]),
        (["brain/train/a", "brain/test/a"], ["brain"]),
        (["train/a", "train/b", "test/a", "test/c"], ["test/c", "lacks"]),
    ],
)
def test_folders_that_are_no_parts(hospital, folders, words):
    hospital.fill(*folders, count=2)
    hospital.refused(*words)


def test_a_class_may_be_called_train_where_the_others_are_no_parts(hospital):
    hospital.fill("bus", "car", "train")
    assert hospital.take_in()[0].class_names == ["bus", "car", "train"]


def test_the_order_is_that_of_paths(hospital):
    hospital.fill("b", "a", count=3)
    tree = find(hospital.root)
    assert ["/".join(f.relative) for f in tree.files] == [
        f"{c}/{i:02}.png" for c in "ab" for i in range(3)
    ]


def test_a_folder_that_may_not_be_listed(hospital, monkeypatch):
    hospital.fill("a", "b")
    (hospital.root / "b" / "2024").mkdir()
    scan = os.scandir

    def closed(path):
        if str(path).endswith("2024"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", closed)
    hospital.refused("cannot be read: Permission denied", hospital.root / "b" / "2024")


def test_a_node_takes_what_it_has(hospital):
    hospital.fill("b", count=1)
    _, made = hospital.as_node()
    assert made["train_labels"].tolist() == [1]
    assert "test_labels" not in made
    hospital.fill("c", count=1)
    hospital.refused("none of the federation's classes", class_names=("a", "b"))


def test_all_pixels_survive(hospital):
    hospital.fill("a", "b")
    from PIL import Image

    _, made = hospital.take_in()
    together = np.concatenate([made["train_images"], made["test_images"]])
    stored = [np.asarray(Image.open(p)) for p in sorted(hospital.root.rglob("*.png"))]
    assert sorted(x.tobytes() for x in stored) == sorted(x.tobytes() for x in together)
