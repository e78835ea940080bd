"""`fedadb predict`: a run's own accuracy on its test part, whatever else a folder may hold."""

import json
import shutil

import numpy as np
import pytest
import torch
from helpers import read_csv, read_json
from image_files import picture
from inference.conftest import command, finished_run, taken_away
from PIL import Image

from fedadb_app.analysis.open_run import open_run
from fedadb_app.runs.predictions import Predictions


def accuracy(rows, truth):
    """Percent, as a run writes it."""
    return float(f"{100 * np.mean([truth(row) == row['class'] for row in rows]):.2f}")


def of_folder(row):
    return row["file"].split("/")[0]


def test_the_test_part_gives_the_runs_own_accuracy(digits_run, digits_test, elsewhere, tmp_path):
    run = taken_away(digits_run, elsewhere)
    code, said = command("predict", run, digits_test, "--output", tmp_path / "p.csv")
    assert code == 0, said
    assert "360 images; 0 files could not be used" in said
    rows = read_csv(tmp_path / "p.csv")
    assert accuracy(rows, of_folder) == read_json(run / "summary.json")["final_accuracy"] > 20
    for row in rows:
        found = {name: float(row[f"p:{name}"]) for name in map(str, range(10))}
        assert sum(found.values()) == pytest.approx(1, abs=1e-6)
        assert max(found, key=found.get) == row["class"]
    assert not (tmp_path / "empty-cache").exists()  # nothing was prepared but the new images


@pytest.fixture(scope="module")
def own_images(tmp_path_factory):
    """16-bit pictures of several sizes: their sum says the class, and only a window shows it."""
    root = tmp_path_factory.mktemp("own") / "pictures"
    rng = np.random.default_rng(0)
    for part, count in (("train", 16), ("test", 9)):
        for label, name in enumerate(("dark", "light")):
            for i in range(count):
                size = (30 + i, 40)
                pixels = rng.integers(1000 + 500 * label, 2500 + 500 * label, size)
                picture(root / part / name / f"{i}.png", 0)
                Image.fromarray(pixels.astype(np.uint16)).save(root / part / name / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def own_run(tmp_path_factory, own_images):
    return finished_run(
        tmp_path_factory.mktemp("own-run"),
        **{"dataset": str(own_images), "image-shape": "1x28x28"},
        **{"resize": "crop", "intensity": "2%,97.5%", "batch-size": 8, "strategy": "fedadb"},
        **{"fedadb.anchor-steps": 2, "validation": "0.25", "select-by": "val-accuracy"},
    )


def test_own_images_are_prepared_as_those_of_the_run(own_run, own_images, elsewhere, tmp_path):
    """The window that the percentages gave at the time is in the folder, to the last bit."""
    run = taken_away(own_run, elsewhere)
    new = tmp_path / "new"
    shutil.copytree(own_images / "test", new)
    code, said = command("predict", run, new, "--output", tmp_path / "p.csv")
    assert code == 0, said
    rows = read_csv(tmp_path / "p.csv")
    assert accuracy(rows, of_folder) == read_json(run / "summary.json")["final_accuracy"]
    assert '18 images were resized (resize="crop")' in said
    assert command("predict", run, new / "dark" / "0.png", "--output", tmp_path / "1.csv")[0] == 0
    (tmp_path / "list.txt").write_text("new/light/3.png\n\nnew/dark/0.png\n")
    assert command("predict", run, tmp_path / "list.txt", "--output", tmp_path / "l.csv")[0] == 0
    by_name = {row["file"]: row for row in rows}
    listed, one = (read_csv(tmp_path / name) for name in ("l.csv", "1.csv"))
    assert [row["file"] for row in listed] == ["new/light/3.png", "new/dark/0.png"]
    for row in (*listed, *one):  # what is said of an image does not depend on those beside it
        other = by_name[row["file"].removeprefix("new/") if row in listed else "dark/0.png"]
        for name in ("p:dark", "p:light"):
            assert float(row[name]) == pytest.approx(float(other[name]), abs=1e-5)


def test_arrays_of_an_npz_file(digits_run, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "new.npz", images=images[:2], test_images=images, mask=images)
    code, said = command(
        "predict", digits_run, tmp_path / "new.npz", "--output", tmp_path / "p.csv"
    )
    assert code == 0, said
    rows = read_csv(tmp_path / "p.csv")
    assert [(r["file"], r["image"]) for r in rows] == [
        *[("images", str(i)) for i in range(2)],
        *[("test_images", str(i)) for i in range(5)],
    ]
    run = open_run(digits_run)
    model = run.whole_model("model.safetensors")
    expected = model((torch.tensor(images[:, None]) / 255 - 0.5) / 0.5).softmax(1)
    found = [[float(r[f"p:{c}"]) for c in range(10)] for r in rows[2:]]
    np.testing.assert_allclose(found, expected.detach().numpy(), atol=1e-6)
    words = ("--array", "test_images", "--output", tmp_path / "q.csv")
    assert command("predict", digits_run, tmp_path / "new.npz", *words)[0] == 0
    assert len(read_csv(tmp_path / "q.csv")) == 5
    code, said = command("predict", digits_run, tmp_path / "new.npz", "--array", "val_images")
    assert code == 1
    assert "has no array val_images; it has images, test_images" in said


def test_what_cannot_be_used_is_counted_and_says_why(digits_run, tmp_path):
    root = tmp_path / "new"
    picture(root / "a.png", 10)
    picture(root / "b" / "c.png", 200, size=(40, 60), mode="RGB")
    (root / "broken.png").write_bytes(b"not an image")
    (root / "notes.xml").write_text("x")
    (root / "NOTES").write_text("x")
    Image.fromarray(np.arange(784, dtype=np.uint16).reshape(28, 28)).save(root / "deep.png")
    code, said = command("predict", digits_run, root, "--output", tmp_path / "p.csv")
    assert code == 0
    rows = {row["file"]: row for row in read_csv(tmp_path / "p.csv")}
    assert set(rows) == {"a.png", "b/c.png", "broken.png", "deep.png"}
    assert rows["broken.png"]["class"] == ""
    assert "does not begin like one" in rows["broken.png"]["problem"]
    assert 'intensity="0,4095"' in rows["deep.png"]["problem"]
    assert rows["a.png"]["problem"] == ""
    for line in ("found: 6 files; read: 2", "left out: 1 .xml", "left out: 1 without suffix"):
        assert line in said
    assert "2 images; 2 files could not be used" in said
    words = ("--intensity", "0,783", "--output", tmp_path / "q.csv")
    assert command("predict", digits_run, root, *words)[0] == 0
    assert {r["file"] for r in read_csv(tmp_path / "q.csv") if r["problem"]} == {"broken.png"}


def test_a_list_that_names_what_is_not_there(digits_run, tmp_path):
    picture(tmp_path / "a.png", 10)
    table = tmp_path / "list.csv"
    table.write_text("patient,file\n1,a.png\n2,gone.png\n")
    code, said = command("predict", digits_run, table, "--output", tmp_path / "p.csv")
    assert code == 0, said
    rows = read_csv(tmp_path / "p.csv")
    assert [row["file"] for row in rows] == ["a.png", "gone.png"]
    assert "No such file" in rows[1]["problem"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("list.csv", b"path\na.png\n", 'there is no column "file"'),
        ("list.csv", b"file\na.png\na.png\n", "line 3: a.png is listed already, in line 2"),
        ("list.txt", b"\xff\xfe\xfa", "cannot be read as UTF-8"),
        ("list.txt", b"gone.png\n", "gone.png cannot be read: No such file"),
        ("list.txt", b"", "holds no image"),
        ("new.npz", b"PK nothing", "is damaged or no .npz file"),
    ],
)
def test_what_cannot_be_read_is_refused(digits_run, tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    picture(tmp_path / "a.png", 10)
    code, told = command("predict", digits_run, tmp_path / name, "--output", tmp_path / "p.csv")
    assert code == 1
    assert said in told
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "chosen"], "use --model final"),
        (["--intensity", "1%,99%"], "give two values"),
        (["--intensity", "9,1"], "not allowed"),
        (["--array", "images"], "is no .npz file"),
    ],
)
def test_options_that_are_refused(digits_run, digits_test, tmp_path, words, said):
    code, told = command("predict", digits_run, digits_test, *words, "--output", tmp_path / "p.csv")
    assert code == 1
    assert said in told


def test_folders_that_are_refused(digits_run, digits_test, tmp_path):
    gone = command("predict", digits_run, tmp_path / "gone")
    assert gone[0] == 1
    assert "there is no such file or folder" in gone[1]
    no_run = command("predict", tmp_path, digits_test)
    assert no_run[0] == 1
    assert "holds no run" in no_run[1]
    for damage in ('{"image-shape": [1, 28]}', "{", '{"image-shape": [1, 28, 28], "odd": 1}'):
        run = taken_away(digits_run, tmp_path / f"run{len(damage)}")
        (run / "model.json").write_text(damage)
        code, said = command("predict", run, digits_test)
        assert code == 1
        assert "model.json cannot be read" in said
        assert said.count("\n") == 1


def test_a_model_that_looks_at_the_images_beside_one_is_refused(digits_run, digits_test, tmp_path):
    run = taken_away(digits_run, tmp_path / "local")
    config = run / "config.toml"
    local = config.read_text().replace('norm = "batch"', 'norm = "batch-local"')
    config.write_text(local)  # of no effect on LeNet, which has no normalisation
    assert command("predict", run, digits_test, "--output", tmp_path / "p.csv")[0] == 0
    config.write_text(local.replace('model = "lenet"', 'model = "resnet8"'))
    code, said = command("predict", run, digits_test)
    assert code == 1
    assert 'not possible with norm="batch-local"' in said


def test_a_run_of_an_older_version_is_read_by_its_data_set(digits_run, digits_test, tmp_path):
    run = taken_away(digits_run, tmp_path / "old")
    (run / "model.json").unlink()
    assert command("predict", run, digits_test, "--output", tmp_path / "p.csv")[0] == 0
    of_now = open_run(digits_run).inputs
    assert open_run(run).inputs == of_now
    written = json.loads((digits_run / "model.json").read_text())
    assert written["class-names"] == [str(c) for c in range(10)]
    assert (written["mean"], written["std"]) == ([0.5], [0.5])


def with_validation(run, folder, labels, positive):
    """A run of two classes that has kept what its model says of its validation images."""
    taken_away(run, folder)
    found = np.stack([1 - np.array(positive), positive], axis=1).astype(np.float32)
    Predictions(
        *(np.array([0, 1]), found[:2], 1),
        **{"val_labels": np.array(labels), "val_final": found},
    ).write(folder, ["dark", "light"])
    return folder


def test_a_threshold_that_validation_images_choose(own_run, own_images, tmp_path):
    """Of the four light ones three, 0.75, have at least 0.3; the fourth would cost more."""
    scores = [0.2, 0.3, 0.6, 0.9, 0.1, 0.25, 0.35]
    run = with_validation(own_run, tmp_path / "run", [1, 1, 1, 1, 0, 0, 0], scores)
    words = ("predict", run, own_images / "test", "--output", tmp_path / "p.csv")
    code, said = command(*words, "--sensitivity", "0.75")
    assert code == 0, said
    assert "light from a probability of 0.300000012 on" in said
    assert "sensitivity 0.750, specificity 0.667" in said
    for row in read_csv(tmp_path / "p.csv"):
        assert row["class"] == ("light" if float(row["p:light"]) >= np.float32(0.3) else "dark")
    for value, why in (("0", "above 0 and at most 1"), ("1.5", "above 0 and at most 1")):
        code, said = command(*words, "--sensitivity", value)
        assert code == 1
        assert why in said


def test_the_model_that_validation_chose(own_run, own_images, tmp_path):
    words = ("predict", own_run, own_images / "test", "--output", tmp_path / "p.csv")
    code, said = command(*words, "--model", "chosen")
    assert code == 0, said
    chosen = read_json(own_run / "summary.json")["selection"]["chosen"]
    assert accuracy(read_csv(tmp_path / "p.csv"), of_folder) == chosen["test"]["accuracy"]
    assert command(*words, "--model", "chosen", "--sensitivity", "1")[0] == 0
    code, said = command("card", own_run, "--model", "chosen")
    assert code == 0, said
    card = (own_run / "MODEL_CARD.md").read_text()
    assert f"| the chosen round | {chosen['round']}, chosen by {chosen['by']}: accuracy" in card


def test_a_threshold_needs_two_classes_and_validation_images(
    digits_run, own_run, digits_test, tmp_path
):
    code, said = command("predict", digits_run, digits_test, "--sensitivity", "0.9")
    assert code == 1
    assert "a threshold divides two classes" in said
    none = taken_away(own_run, tmp_path / "none")
    (none / "predictions.npz").unlink()
    code, said = command("predict", none, digits_test, "--sensitivity", "0.9")
    assert code == 1
    assert "the run has none" in said
    run = with_validation(own_run, tmp_path / "run", [0, 0], [0.1, 0.2])
    code, said = command("predict", run, digits_test, "--sensitivity", "0.9")
    assert code == 1
    assert "no validation image is of class 1" in said


def test_a_sites_own_model_is_opened_like_a_run(tmp_path):
    """What a node has kept is all that is needed, and says what its own copy of the model says."""
    finished_run(
        tmp_path,
        **{"dataset": "digits", "evaluate": "clients", "personalise-epochs": 1},
        **{"client-state-dir": str(tmp_path / "states")},
    )
    kept = tmp_path / "states" / "7" / "client-1" / "personalised"
    folder = taken_away(kept, tmp_path / "elsewhere")
    images = np.random.default_rng(0).integers(0, 256, (3, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "new.npz", images=images)
    code, said = command("predict", folder, tmp_path / "new.npz", "--output", tmp_path / "p.csv")
    assert code == 0, said
    model = open_run(folder).whole_model("model.safetensors")
    expected = model((torch.tensor(images[:, None]) / 255 - 0.5) / 0.5).softmax(1)
    found = [[float(r[f"p:{c}"]) for c in range(10)] for r in read_csv(tmp_path / "p.csv")]
    np.testing.assert_allclose(found, expected.detach(), atol=1e-6)
    code, said = command("export", folder, "--format", "safetensors")
    assert code == 0, said
    assert "no model card: the folder has no record of a run" in said
