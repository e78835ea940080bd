"""``MODEL_CARD.md``: what is known stands in it, what is not known is said."""

import hashlib
import json

from helpers import read_csv, read_json
from inference.conftest import command, taken_away

from fedadb_app.data.registry import DATASETS


def card_of(run):
    code, said = command("card", run)
    assert code == 0, said
    return (run / "MODEL_CARD.md").read_text()


def test_what_a_run_knows(digits_run, elsewhere):
    run = taken_away(digits_run, elsewhere)
    text = card_of(run)
    accuracy = read_json(run / "summary.json")["final_accuracy"]
    digest = hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()
    for words in (
        f"| accuracy of the last round | {accuracy} % |",
        f"`{digest}`",
        "LeNet-5",
        "McMahan et al., AISTATS 2017",
        "28x28 pixels, grey",
        "2, with 1437 training images",
        "| robust mean | none |",
        "1 local epochs, batches of 16, `sgd`, learning rate 0.05",
        "weights drawn from the seed",
        "not known to this app: ask whoever publishes the images",
        "## What was not tested",
    ):
        assert words in text, words
    assert "nan" not in text.casefold().split()


def test_metrics_beside_accuracy_are_those_of_the_file(digits_run, tmp_path):
    run = taken_away(digits_run, tmp_path / "run")
    rounds = read_json(run / "summary.json")["rounds"]
    rows = {
        (r["round"], r["metric"]): r["value"]
        for r in read_csv(run / "metrics.csv")
        if r["part"] == "test" and not r["class"]
    }
    text = card_of(run)
    last = str(rounds)
    assert f"| AUC, round {last} | {rows[last, 'auc']} |" in text
    assert f"| balanced accuracy, round {last} | {rows[last, 'balanced-accuracy']} % |" in text
    assert f"| expected calibration error, round {last} | {rows[last, 'ece']} |" in text
    table = (run / "metrics.csv").read_text()
    (run / "metrics.csv").write_text(table.replace(f",{rows[last, 'auc']}\n", ",\n"))
    assert f"| AUC, round {last} | not defined" in card_of(run)
    (run / "metrics.csv").unlink()
    assert "AUC" not in card_of(run)


def test_what_it_does_not_know_is_said(digits_run, tmp_path):
    run = taken_away(digits_run, tmp_path / "run")
    (run / "partition.json").unlink()
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace('"server"', '"none"'))
    (run / "class_accuracy.csv").write_text("damaged")
    text = card_of(run)
    assert "| clients | not known: the run's folder does not say |" in text
    assert "* Anything: no image was kept for a test" in text
    assert "class_accuracy.csv cannot be read" in text


def test_weights_of_others_and_their_optimiser(digits_run, tmp_path):
    run = taken_away(digits_run, tmp_path / "run")
    summary = read_json(run / "summary.json") | {"weights": "ab12"}
    (run / "summary.json").write_text(json.dumps(summary))
    config = (run / "config.toml").read_text()
    config = config.replace('weights = ""', 'weights = "/secret/place/net.pth"')
    config = config.replace('optimizer = "sgd"', 'optimizer = "adamw"')
    (run / "config.toml").write_text(config.replace("warmup-rounds = 0", "warmup-rounds = 3"))
    text = card_of(run)
    assert "`net.pth`, SHA-256 `ab12`; who trained these on what" in text
    assert "secret" not in text
    assert "`adamw`, learning rate 0.05 × 0.99^(round − 1), weight decay" in text
    assert "momentum" not in text
    assert "3 rounds of warm-up" in text


def test_licences_are_those_that_publishers_name():
    assert DATASETS.find("pathmnist").licence == "CC BY 4.0"
    assert DATASETS.find("dermamnist").licence == "CC BY-NC 4.0"


def test_a_table_survives_what_a_class_is_called(digits_run, tmp_path):
    run = taken_away(digits_run, tmp_path / "run")
    inputs = json.loads((run / "model.json").read_text())
    inputs["class-names"][0] = "a|b"
    (run / "model.json").write_text(json.dumps(inputs))
    assert "10 classes: a\\|b, 1," in card_of(run)


def test_there_is_no_card_of_a_model_that_is_not_there(digits_run):
    code, said = command("card", digits_run, "--model", "chosen")
    assert code == 1
    assert "use --model final" in said
