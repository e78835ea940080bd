"""`fedadb reproduce`: what it runs, what it writes, and what it says when something is missing."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import tomli_w
from helpers import REPOSITORY, read_csv, serve, write_run
from PIL import Image
from typer.testing import CliRunner

from fedadb_app.analysis import hessian, landscape
from fedadb_app.analysis.open_run import open_run
from fedadb_app.assignments import app_defaults
from fedadb_app.cli.main import main
from fedadb_app.comparison import running
from fedadb_app.flower_run import FlowerError
from fedadb_app.reproduction import outputs
from fedadb_app.reproduction.outputs import Reproduction
from fedadb_app.reproduction.studies import STUDIES, study_of
from fedadb_app.reproduction.study import only
from fedadb_app.reproduction.tables import Result

NUMBERS_ONLY = ("table1", "table2", "table3", "table4", "table6", "figure2", "figure3", "figure4")
NEED_MODELS = ("table5", "figure6", "figure7", "figure8", "figure9")
BASE = "cross-device-pathmnist"


class Flower:
    """Stands for Flower: notes what is started, and lets each run end as `ends` says.

    A run leaves made-up curves, or is the whole app in this process.
    """

    def __init__(self, monkeypatch, real=False):
        self.started, self.ends, self.real = [], {}, real
        monkeypatch.setattr(running, "FlowerRun", self.start)
        monkeypatch.setattr("fedadb_app.cli.progress.watch", self.watch)
        for plot in ("plot_curves", "plot_classes"):  # of the comparison's own folder
            monkeypatch.setattr(f"fedadb_app.comparison.running.{plot}", lambda *arguments: None)

    def start(self, app, values, simulation):
        self.started.append(f"{values['output-dir'].split('/')[-2]}/{values['run-name']}")
        if self.ends.get(self.started[-1]) == "refused":
            raise FlowerError("flwr run: Invalid run configuration")
        return values, simulation

    def watch(self, progress, flower_run, folder, rounds, name, parent=None):
        values, simulation = flower_run
        end = self.ends.get(self.started[-1], "completed")
        if self.real:
            serve({**app_defaults(REPOSITORY), **values}, clients=simulation.num_supernodes)
        else:
            top = 40.0 + 3 * len(values["strategy"]) + values["seed"]
            curve = [top * t / rounds for t in range(1, rounds + 1)]
            write_run(folder, curve, status=end, classes=((80.0, 0.0), (20.0, 40.0)))
            (folder / "config.toml").write_text(tomli_w.dumps(values))
        return f"finished:{end}", "out of memory"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """PathMNIST in its official format, small."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 1000), ("val", 360), ("test", 90)):
        labels = np.arange(count) % 9
        images = rng.integers(0, 100, (count, 28, 28, 3), np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[3 * label : 3 * label + 4] += 100
        arrays |= {f"{part}_images": images, f"{part}_labels": labels[:, None]}
    np.savez(folder / "pathmnist.npz", **arrays)
    return folder


@pytest.fixture
def flower(monkeypatch):
    return Flower(monkeypatch)


@pytest.fixture
def call(tmp_path, data):
    """`fedadb reproduce …` on those data."""

    def invoke(*arguments, output=tmp_path / "out"):
        fixed = ["--app", str(REPOSITORY), "--output", str(output), "-c", f'data-dir="{data}"']
        return CliRunner().invoke(main, ["reproduce", *arguments, *fixed])

    return invoke


def page_of(folder, item):
    """Check that a page's pictures are there and that it shows no stray number; return it."""
    text = (folder / f"{item}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {item[:-1].capitalize()} {item[-1]}: ")
    assert not re.search(r"\b(nan|inf|None)\b", text)
    pictures = re.findall(r"!\[.+\]\((.+)\)", text)
    assert bool(pictures) == item.startswith("figure")
    for picture in pictures:
        with Image.open(folder / picture) as image:
            assert min(image.size) > 200
            assert len(np.unique(np.asarray(image.convert("L")))) > 20
    for row in read_csv(folder / f"{item}.csv"):
        assert "nan" not in row.values()
    return text


# --- what it writes -------------------------------------------------------------------------


@pytest.mark.parametrize("item", [*NUMBERS_ONLY, "figure5"])
def test_an_item_of_curves_is_written(flower, call, tmp_path, item):
    result = call(item)
    assert result.exit_code == 0, result.output
    folder = tmp_path / "out" / "small"
    study = study_of(item, "small")
    assert str(folder / f"{item}.md") in result.output
    text = page_of(folder, item)
    assert study.changed in text
    wanted = len(study_of(item, "full").seeds)
    one_for_three = len(study.seeds) < wanted
    assert ("Number of seeds: 1 instead of 3." in text) == one_for_three
    assert one_for_three == (item not in ("table3", "figure5"))
    assert "missing" not in text
    if item in ("figure2", "figure3"):  # the default is a red dot before the line of each panel
        pixels = np.asarray(Image.open(folder / f"{item}.png").convert("RGB")).astype(int)
        red = (pixels[..., 0] > 250) & (pixels[..., 1:].max(-1) < 5)
        panels = 3 if item == "figure2" else 4
        assert all(part.any() for part in np.array_split(red, panels, axis=1))
    assert len(flower.started) == len(set(flower.started))
    assert len(flower.started) == len({e.setting.name + e.strategy for e in study.entries}) * len(
        study.seeds
    )
    again = call(item)
    assert again.exit_code == 0, again.output
    assert page_of(folder, item) == text
    assert len(flower.started) == len(set(flower.started))  # nothing anew


def test_the_numbers_beside_the_papers(flower, call, tmp_path):
    assert call("table3").exit_code == 0
    rows = {row["row"]: row for row in read_csv(tmp_path / "out" / "small" / "table3.csv")}
    # 60 rounds to 58, 59 and 60 %: the best five are 60 … 56 of 60, 58/60 of the last
    assert rows["fedadb"]["ours"] == f"{59 * 58 / 60:.2f}"
    assert rows["fedadb"]["deviation"] == f"{58 / 60:.2f}"
    assert rows["fedadb"]["paper"] == "59.21"
    assert rows["fedadb"]["difference"] == f"{59 * 58 / 60 - 59.21:.2f}"
    assert rows["use-anchors=false"]["runs"] == "3"
    text = page_of(tmp_path / "out" / "small", "table3")
    assert "| FedADB | 57.03 ± 0.97 (59.21, -2.18) |" in text
    assert "Seeds: 0, 1, 2." in text


def test_a_call_says_on_the_page_what_it_changed(flower, call, tmp_path):
    arguments = ["table3", "--only", "fedavg", "--rounds", "7", "--seeds", "4", "-c"]
    result = call(*arguments, "learning-rate=0.02")
    assert result.exit_code == 0, result.output
    assert flower.started == [f"{BASE}-num-server-rounds-7/fedavg-alpha0.1-seed4"]
    text = page_of(tmp_path / "out" / "small", "table3")
    said_by_call = ("Only fedavg.", "Number of seeds: 1 instead of 3.", "All in 7 rounds.")
    for said in (*said_by_call, "learning-rate=0.02", "Seeds: 4."):
        assert said in text
    assert "FedADB" not in text


def test_full_scale_is_kept_apart(flower, call, tmp_path):
    result = call("figure9", "table1", "--scale", "full", "--only", "pathmnist,fedadb")
    assert result.exit_code == 1  # made-up runs have no models
    assert flower.started == [
        f"{BASE}/fedadb-alpha0.1-seed0",
        f"{BASE}/fedadb-alpha0.1-seed1",
        f"{BASE}/fedadb-alpha0.1-seed2",
        *(f"cross-silo-pathmnist/fedadb-alpha0.1-seed{seed}" for seed in range(3)),
    ]
    assert (tmp_path / "out" / "full" / "table1.md").exists()
    assert not (tmp_path / "out" / "small").exists()


def test_all_runs_what_items_share_once(flower, call, tmp_path):
    result = call("all", "--only", "fedadb")
    assert result.exit_code == 1  # made-up runs have no models
    assert len(flower.started) == len(set(flower.started))
    wanted = {
        f"{e.setting.name}/fedadb-alpha0.1-seed{seed}"
        for study in only([study_of(item, "small") for item in STUDIES], ["fedadb"])
        for e in study.entries
        for seed in study.seeds
    }
    assert set(flower.started) == wanted
    for item in STUDIES:
        assert (tmp_path / "out" / "small" / f"{item}.md").exists() == (item not in NEED_MODELS)
    assert "5 problems" in result.output


# --- what needs models ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory, data):
    """Table 5 of two methods after eleven real rounds, of which the tenth's model is kept too."""
    output = tmp_path_factory.mktemp("reproduced")
    arguments = ["--app", str(REPOSITORY), "--output", str(output), *SHORT]
    with pytest.MonkeyPatch.context() as patch:
        flower = Flower(patch, real=True)
        coarse(patch)
        result = CliRunner().invoke(
            main, ["reproduce", "table5", *arguments, "-c", f'data-dir="{data}"']
        )
    assert result.exit_code == 0, result.output
    assert len(flower.started) == 2
    return output


SHORT = ["--only", "fedavg,fedadb", "--rounds", "11", "-c", "fedadb.anchor-steps=5"]


def coarse(patch):
    """Few images and points, for they are checked elsewhere."""
    patch.setattr(hessian, "SAMPLE_SIZE", 64)
    patch.setattr(landscape, "POINTS", 5)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("table5", ("| lambda1 |", "(311.00, ", "(52.27, ", "| lambda1/lambda5 |")),
        ("figure6", ("| loss of the model |", "| highest loss around it |")),
        ("figure7", ("t-SNE",)),
        ("figure8", ("round 10", "round 11", "| three components: anchor and its own class |")),
        ("figure9", ("PathMNIST, α = 0.1", "| lowest PSNR of an anchor, dB |")),
    ],
)
def test_an_item_of_models_is_written(monkeypatch, reproduced, call, item, said):
    flower = Flower(monkeypatch)
    coarse(monkeypatch)
    short = [word.replace("fedavg,", "") if item > "figure6" else word for word in SHORT]
    if item == "table5":
        short = SHORT
    result = call(item, *short, output=reproduced)
    assert result.exit_code == 0, result.output
    assert flower.started == []  # they look at the same runs
    text = page_of(reproduced / "small", item)
    for words in said:
        assert words in text


def without_models(reproduced, copy, method="*"):
    """Without the final model, that is: an earlier one is kept, and is no substitute."""
    shutil.copytree(reproduced, copy)
    for model in copy.rglob(f"{method}-alpha*/model.safetensors"):
        model.unlink()


def test_a_run_that_kept_no_model_is_named_and_the_others_are_shown(
    monkeypatch, reproduced, call, tmp_path
):
    coarse(monkeypatch)
    without_models(reproduced, tmp_path / "copy", "fedadb")
    whole = page_of(reproduced / "small", "table5")
    flower = Flower(monkeypatch)
    result = call("table5", "figure6", "figure5", *SHORT, output=tmp_path / "copy")
    assert result.exit_code == 1
    for item in ("table5", "figure6"):
        lines = [line for line in result.output.splitlines() if line.startswith(f"{item}: /")]
        assert len(lines) == 1
        assert "fedadb-alpha0.1-seed0 keeps no global model of round 11, only of 10" in lines[0]
    assert "Traceback" not in result.output
    assert "2 problems, named above" in result.output
    table = page_of(tmp_path / "copy" / "small", "table5")
    for before, now in zip(whole.splitlines(), table.splitlines(), strict=True):
        assert now.split("|")[:3] == before.split("|")[:3]  # FedAvg's column
    assert table.count("– (") == 3
    figure = page_of(tmp_path / "copy" / "small", "figure6")
    assert "FedAvg" in figure
    assert "FedADB" not in figure
    page_of(tmp_path / "copy" / "small", "figure5")  # needs no model
    assert flower.started == []


def test_no_model_at_all_leaves_the_page_as_it_is(monkeypatch, reproduced, call, tmp_path):
    without_models(reproduced, tmp_path / "copy")
    before = (tmp_path / "copy" / "small" / "table5.md").read_text()
    result = call("table5", *SHORT, output=tmp_path / "copy")
    assert result.exit_code == 1
    assert "2 problems, named above" in result.output  # one a method
    assert (tmp_path / "copy" / "small" / "table5.md").read_text() == before


def test_figure_9_shows_the_data_sets_of_which_there_is_a_model(reproduced, tmp_path):
    study = study_of("figure9", "full")
    (folder,) = reproduced.rglob("fedadb-alpha0.1-seed0")
    there = [Result(entry, ["a reading"], [tmp_path / entry.column]) for entry in study.entries]
    there[2] = replace(there[2], folders=[folder])
    said = []
    outputs.write(Reproduction(study, there, open_run, tmp_path, said.append))
    text = page_of(tmp_path, "figure9")
    assert "PathMNIST, α = 0.1" in text
    assert "SVHN" not in text
    assert len(said) == 2
    assert "svhn 0.1 holds no run" in said[1]


@pytest.mark.parametrize("item", ["figure7", "figure8"])
@pytest.mark.parametrize(
    ("lost", "missing", "shown"),
    [("snapshots/*/*", 10, 11), ("*", 11, 10)],
)
def test_a_stage_that_is_missing_is_named(
    monkeypatch, reproduced, call, tmp_path, item, lost, missing, shown
):
    shutil.copytree(reproduced, tmp_path / "copy")
    for model in (tmp_path / "copy").rglob(f"fedadb-alpha0.1-seed0/{lost}"):
        if model.name == "model.safetensors":
            model.unlink()
    short = [word.replace("fedavg,", "") for word in SHORT]
    result = call(item, *short, output=tmp_path / "copy")
    assert result.exit_code == 1
    said = f"fedadb-alpha0.1-seed0 keeps no global model of round {missing}, only of {shown}"
    assert said in result.output
    assert "1 problems, named above" in result.output
    text = page_of(tmp_path / "copy" / "small", item)
    assert f"round {missing}" not in text
    if item == "figure8":
        assert f"round {shown}" in text


def moved(reproduced, copy):
    """As if the runs had been made where their data are no longer."""
    shutil.copytree(reproduced, copy)
    for path in [*copy.rglob("config.toml"), *copy.rglob("comparison.json")]:
        path.write_text(re.sub(r'(data-dir"?[:=]? =? ?)".*"', rf'\1"{copy}"', path.read_text()))
        assert f'"{copy}"' in path.read_text()


def test_without_the_data_models_cannot_be_looked_at(monkeypatch, reproduced, tmp_path):
    coarse(monkeypatch)
    moved(reproduced, tmp_path / "copy")
    arguments = ["--app", str(REPOSITORY), "--output", str(tmp_path / "copy"), *SHORT]
    result = CliRunner().invoke(main, ["reproduce", "table5", *arguments])
    assert result.exit_code == 1
    assert 'dataset="pathmnist"' in result.output
    assert "does not exist on this machine" in result.output
    assert "1 problems, named above" in result.output
    assert "Traceback" not in result.output


def test_the_data_may_lie_elsewhere_by_now(monkeypatch, reproduced, call, tmp_path):
    coarse(monkeypatch)
    moved(reproduced, tmp_path / "copy")
    flower = Flower(monkeypatch)
    result = call("table5", *SHORT, output=tmp_path / "copy")
    assert result.exit_code == 0, result.output
    assert flower.started == []
    assert page_of(tmp_path / "copy" / "small", "table5") == page_of(reproduced / "small", "table5")


# --- what goes wrong ------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["failed", "stopped", "refused"])
def test_a_failed_run_is_named_and_the_rest_is_written(flower, call, tmp_path, end):
    lost = f"{BASE}-num-server-rounds-60-use-lcb-false/fedadb-alpha0.1-seed1"
    flower.ends[lost] = end
    result = call("table3")
    assert result.exit_code == 1
    assert f"table3: {lost}: " in result.output
    assert "1 problems, named above" in result.output
    rows = {row["row"]: row for row in read_csv(tmp_path / "out" / "small" / "table3.csv")}
    assert {name: row["runs"] for name, row in rows.items()} == {
        "fedavg": "3",
        "use-anchors=false": "3",
        "use-lcb=false": "2",
        "fedadb": "3",
    }
    assert "1 of 12 runs are missing." in page_of(tmp_path / "out" / "small", "table3")
    flower.ends.clear()
    flower.started.clear()
    assert call("table3").exit_code == 0
    assert flower.started == [lost]
    assert "missing" not in page_of(tmp_path / "out" / "small", "table3")


def test_a_run_that_is_another_one_is_named_and_not_counted(flower, call, tmp_path):
    folder = tmp_path / "out" / "small"
    assert call("table4").exit_code == 0
    before = flower.started.copy()
    right, wrong = (
        folder / f"{BASE}-num-server-rounds-20-beta-{beta}" / "runs" / "fedadb-alpha0.1-seed0"
        for beta in ("0.9", "0.1")
    )
    shutil.rmtree(right)
    shutil.copytree(wrong, right)
    for missing in (0, 1):  # whether or not something is to be run beside it
        result = call("table4", "--seeds", "0,1" if missing else "0")
        assert result.exit_code == 1
        said = f'{right} holds another run: its config.toml says fedadb.beta = "0.1", asked for is '
        assert f'{right.parts[-3]}/{right.name}: {said}"0.9"' in result.output
        assert "1 problems, named above" in result.output
        rows = {row["row"]: row["runs"] for row in read_csv(folder / "table4.csv")}
        assert rows["beta=0.9"] == str(missing)
        assert rows["beta=0.1"] == str(1 + missing)
    assert not [run for run in flower.started[len(before) :] if run.endswith("seed0")]


@pytest.mark.parametrize("text", ["{}", '{"run-config": {'])
def test_a_bad_comparison_costs_its_item_only(flower, call, tmp_path, text):
    folder = tmp_path / "out" / "small"
    bad = folder / f"{BASE}-num-server-rounds-20" / "comparison.json"
    bad.parent.mkdir(parents=True)
    bad.write_text(text)
    result = call("table4", "figure5")
    assert result.exit_code == 1
    assert f"table4: {bad} cannot be read" in result.output
    assert "1 problems, named above" in result.output
    assert "Traceback" not in result.output
    assert not (folder / "table4.md").exists()
    assert {run.split("/")[0] for run in flower.started} == {BASE}  # nothing of table4 alone
    page_of(folder, "figure5")
    assert bad.read_text() == text


def test_an_unreadable_run_does_not_keep_others_from_running(flower, call, tmp_path):
    assert call("table1").exit_code == 0
    folder = tmp_path / "out" / "small"
    (folder / "cross-silo-pathmnist/runs/fedavg-alpha0.1-seed0/rounds.csv").unlink()
    shutil.rmtree(folder / "cross-silo-pathmnist/runs/fedadb-alpha0.1-seed0")
    flower.started.clear()
    result = call("table1", "figure4")
    assert result.exit_code == 1
    assert "1 problems, named above" in result.output
    assert flower.started == ["cross-silo-pathmnist/fedadb-alpha0.1-seed0"]
    assert "1 of 22 runs are missing." in page_of(folder, "table1")
    page_of(folder, "figure4")


def test_a_run_that_lacks_rounds_is_named_and_does_not_count(flower, call, tmp_path):
    assert call("table2").exit_code == 0
    (rounds,) = (tmp_path / "out").rglob("feddyn-alpha0.1-seed0/rounds.csv")
    rounds.write_text("".join(rounds.read_text().splitlines(keepends=True)[:30]))
    result = call("table2")
    assert result.exit_code == 1
    assert f"{rounds} does not hold the whole run: it says rounds = 29" in result.output
    assert "1 of 11 runs are missing." in page_of(tmp_path / "out" / "small", "table2")


@pytest.mark.parametrize("item", ["figure2", "figure4", "table1", "table2", "table4"])
def test_an_unfinished_item_shows_what_there_is(flower, call, tmp_path, item):
    """As after a killed machine: but for two runs, nothing could be started."""
    study = study_of(item, "small")
    names = list(dict.fromkeys(f"{e.setting.name}/{e.strategy}" for e in study.entries))
    flower.ends = {f"{name}-alpha0.1-seed0": "refused" for name in names[1:-1]}
    result = call(item)
    assert result.exit_code == 1
    text = page_of(tmp_path / "out" / "small", item)
    assert f"{len(names) - 2} problems" in result.output
    assert f"{len(names) - 2} of {len(names)} runs are missing." in text


def test_nothing_complete_writes_nothing(flower, call, tmp_path):
    flower.ends = {f"{BASE}/{m}-alpha0.1-seed0": "failed" for m in ("fedavg", "fedlmd")}
    result = call("figure5", "--only", "fedavg,fedlmd")
    assert result.exit_code == 1
    assert "figure5: no run is complete, so there is nothing to write" in result.output
    assert not (tmp_path / "out" / "small" / "figure5.md").exists()


def test_a_missing_data_set_is_named_once(flower, call, data, tmp_path):
    """Nothing is started on it; what needs another one is written."""
    result = call("table6", "table1", "--scale", "full", "--only", "pacs,pathmnist,fedadb")
    assert result.exit_code == 1
    assert result.output.count('dataset="pacs"') == 1
    assert str(data / "pacs") in result.output
    assert not [run for run in flower.started if "pacs" in run]
    assert not (tmp_path / "out" / "full" / "table6.md").exists()
    page_of(tmp_path / "out" / "full", "table1")


def test_a_download_that_fails_is_said_once_an_item(flower, tmp_path, monkeypatch):
    tried = []

    def offline(*arguments):
        tried.append(arguments)
        raise OSError("no route to host")

    monkeypatch.setattr("torchvision.datasets.utils.download_url", offline)
    arguments = ["--app", str(REPOSITORY), "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(
        main, ["reproduce", "table4", *arguments, "-c", f'data-dir="{tmp_path}"']
    )
    assert result.exit_code == 1
    assert tried
    assert result.output.count("no route to host") == 1
    assert flower.started == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["table7"], "table7 is none of table1, "),
        (["figure1"], "figure1 is none of table1, "),
        (["table1", "tabel2"], "tabel2 is none of table1, "),
        (["table3", "--only", "fedprox"], "--only fedprox: no such data set"),
        (["table3", "--only", "svhn"], "choose among pathmnist, fedadb, fedavg, cross-device"),
        (["table3", "--seeds", "0,x"], "--seeds 0,x: expected numbers"),
        (["table3", "--seeds", "-1"], "seed=-1 is not allowed"),
        (["table3", "--seeds", ","], "--seeds ,: expected at least one number"),
        (["table3", "-c", "num-server-rounds=5"], "num-server-rounds is set by table3 itself"),
        (["table3", "-c", 'dataset="digits"'], "dataset is set by table3 itself"),
        (["table3", "-c", "seed=3"], "seed is set by table3 itself"),
        (["table3", "-c", 'strategy="fedexp"'], "strategy is set by table3 itself"),
        (["table3", "-c", "alpha=0.5"], "alpha is set by table3 itself"),
        (["table3", "-c", 'output-dir="/x"'], "output-dir is set by table3 itself"),
        (["table3", "-c", "alhpa=1"], 'did you mean "alpha"?'),
        (["table3", "-c", "momentum=2.0"], "momentum=2.0 is not allowed"),
        (["table3", "-c", 'evaluate="none"'], "leaves the server nothing to compare"),
        # said before table1's first run, not after its last
        (["table1", "table4", "-c", 'fedadb.beta="0.5"'], "fedadb.beta is set by table4 itself"),
    ],
)
def test_a_mistake_gets_one_sentence_before_the_first_run(flower, call, tmp_path, arguments, said):
    result = call(*arguments)
    assert result.exit_code == 1
    assert said in result.output
    assert result.output.count("\n") == 1
    assert flower.started == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments", [["table1", "--scale", "tiny"], ["table1", "--rounds", "-1"], []]
)
def test_typer_refuses(flower, call, arguments):
    assert call(*arguments).exit_code == 2
    assert flower.started == []


def test_no_checkout(flower, tmp_path):
    result = CliRunner().invoke(main, ["reproduce", "table1", "--app", str(tmp_path)])
    assert result.exit_code == 1
    assert "is not a checkout of this app" in result.output


def test_other_settings_are_refused_and_nothing_is_changed(flower, call, tmp_path):
    assert call("table3", "--only", "fedavg").exit_code == 0
    before = (tmp_path / "out" / "small" / "table3.md").read_text()
    started = flower.started.copy()
    result = call("table3", "-c", "batch-size=64")
    assert result.exit_code == 1
    assert result.output.count("other settings (run-config.batch-size)") == 1
    assert "1 problems, named above" in result.output
    assert flower.started == started  # not even what is missing, beside other settings
    result = call("table3", "--only", "fedavg", "--client-cpus", "2")
    assert result.exit_code == 1
    assert "federation.client_cpus" in result.output
    assert (tmp_path / "out" / "small" / "table3.md").read_text() == before


def test_where_things_lie_may_differ(flower, call, tmp_path):
    assert call("table3").exit_code == 0
    before = page_of(tmp_path / "out" / "small", "table3")
    started = flower.started.copy()
    arguments = ["--app", str(REPOSITORY), "--output", str(tmp_path / "out")]
    for elsewhere in ([], ["-c", 'data-dir="/there" device="cpu" checkpoint-every=5']):
        result = CliRunner().invoke(main, ["reproduce", "table3", *arguments, *elsewhere])
        assert result.exit_code == 0, result.output
        assert page_of(tmp_path / "out" / "small", "table3") == before
    assert flower.started == started


def test_an_output_that_cannot_be_written(flower, call, tmp_path):
    (tmp_path / "file").write_text("")
    result = call("table3", output=tmp_path / "file")
    assert result.exit_code == 1
    assert "cannot be written to" in result.output
    assert flower.started == []


def test_a_page_that_cannot_be_written(flower, call, tmp_path):
    (tmp_path / "out" / "small" / "table3.md").mkdir(parents=True)
    result = call("table3", "table4")
    assert result.exit_code == 1
    assert "table3.md" in result.output
    assert "Traceback" not in result.output
    page_of(tmp_path / "out" / "small", "table4")


def test_the_help_names_the_items():
    result = CliRunner().invoke(main, ["reproduce", "--help"])
    text = " ".join(result.output.split())
    assert "ITEMS are table1 to table6, figure2 to figure9, or all." in text
