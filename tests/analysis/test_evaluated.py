"""`fedadb evaluate`: its tables are the metrics' own, and what cannot be said is refused."""

import csv
import json
import math

import numpy as np
import pytest
from helpers import read_json, write_run
from typer.testing import CliRunner

from fedadb_app.analysis.table_files import latex
from fedadb_app.analysis.uncertainty import interval, resampled_metrics
from fedadb_app.cli.main import main
from fedadb_app.metrics import metrics_of
from fedadb_app.runs.predictions import Predictions
from fedadb_app.runs.tables import Table

NAMES = ("a", "b")


def probabilities(labels, seed):
    rng = np.random.default_rng(seed)
    second = np.clip(0.35 + 0.3 * labels + 0.3 * rng.normal(size=len(labels)), 0.01, 0.99)
    return np.stack([1 - second, second], axis=1).astype(np.float32)


def predictions(seed=1, **more):
    labels = np.random.default_rng(0).integers(0, 2, 60)
    return Predictions(labels, probabilities(labels, seed), 3, **more)


def validated(seed=1):
    labels = np.arange(40) % 2
    more = {"val_labels": labels, "val_final": probabilities(labels, 8)}
    more |= {"chosen": predictions(seed + 1).final, "chosen_round": 2}
    return predictions(seed, **more, val_chosen=probabilities(labels, 9))


def run(folder, kept, **summary):
    write_run(folder, [10.0, 20.0, 30.0])
    if kept is not None:
        kept.write(folder, NAMES)
    written = read_json(folder / "summary.json") | {"seed": 5, "data": "x", **summary}
    (folder / "summary.json").write_text(json.dumps(written))
    return folder


def evaluate(*arguments):
    return CliRunner().invoke(main, ["evaluate", *map(str, arguments)], env={"COLUMNS": "200"})


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_metric_stands_with_its_interval(tmp_path):
    kept = predictions()
    result = evaluate(run(tmp_path / "run", kept))
    assert result.exit_code == 0, result.output
    assert "2000 resamples of 60 images" in result.output
    written = rows(tmp_path / "run" / "intervals.csv")
    resampled = resampled_metrics(kept.labels, kept.final, None, 5, 2000)
    expected = list(metrics_of(kept.labels, kept.final).values())
    assert len(written) == len(expected)
    for row, (name, label, value) in zip(written, expected, strict=True):
        assert (row["model"], row["round"], row["metric"]) == ("final", "3", name)
        assert row["class"] == ("" if label is None else NAMES[label])
        assert float(row["value"]) == pytest.approx(value, rel=1e-5)
        found = interval(resampled[name, label])
        assert float(row["low"]) == pytest.approx(found.low, rel=1e-5)
        assert float(row["high"]) == pytest.approx(found.high, rel=1e-5)
    assert r"\toprule" in (tmp_path / "run" / "intervals.tex").read_text()


def test_the_model_chosen_on_validation_stands_beside_the_last(tmp_path):
    evaluate(run(tmp_path / "run", validated()))
    models = {(r["model"], r["round"]) for r in rows(tmp_path / "run" / "intervals.csv")}
    assert models == {("final", "3"), ("chosen", "2")}


def test_patients_are_what_is_drawn(tmp_path):
    result = evaluate(run(tmp_path / "run", predictions(groups=np.arange(60) // 4)))
    assert "15 patients with 60 images" in result.output


def test_the_threshold_comes_from_validation_and_is_applied_to_the_test_part(tmp_path):
    kept = validated()
    result = evaluate(run(tmp_path / "run", kept), "--sensitivity", "0.9")
    assert result.exit_code == 0, result.output
    sensitivity, specificity, *chosen = rows(tmp_path / "run" / "thresholds.csv")
    assert {row["model"] for row in chosen} == {"chosen"}
    threshold = float(sensitivity["threshold"])
    positive = kept.val_labels == 1
    assert np.mean(kept.val_final[positive, 1] >= threshold) >= 0.9
    assert np.mean(kept.val_final[positive, 1] > threshold) < 0.9
    called = kept.final[:, 1] >= threshold
    assert float(sensitivity["test"]) == pytest.approx(
        100 * called[kept.labels == 1].mean(), rel=1e-5
    )
    assert float(specificity["test"]) == pytest.approx(
        100 * (~called[kept.labels == 0]).mean(), rel=1e-5
    )
    for row in (sensitivity, specificity):
        assert float(row["low"]) < float(row["test"]) < float(row["high"])


def test_two_runs_are_compared_image_by_image(tmp_path):
    kept, of_other = validated(), predictions(seed=4)
    mine, other = run(tmp_path / "mine", kept), run(tmp_path / "other", of_other)
    result = evaluate(mine, "--against", other)
    assert result.exit_code == 0, result.output
    (row,) = rows(mine / "mcnemar-other.csv")  # only one of the two has a chosen model
    right, right_there = (k.final.argmax(axis=1) == k.labels for k in (kept, of_other))
    only, only_there = int((right & ~right_there).sum()), int((right_there & ~right).sum())
    assert (row["only_this_right"], row["only_other_right"]) == (str(only), str(only_there))
    tail = sum(math.comb(only + only_there, k) for k in range(min(only, only_there) + 1))
    assert float(row["p"]) == pytest.approx(min(1, 2 * tail / 2 ** (only + only_there)), rel=1e-4)
    accuracy = rows(mine / "against-other.csv")[0]
    assert float(accuracy["difference"]) == pytest.approx(100 * (only - only_there) / 60, rel=1e-4)
    assert float(accuracy["low"]) <= float(accuracy["difference"]) <= float(accuracy["high"])


def test_a_run_does_not_differ_from_itself(tmp_path):
    mine, other = run(tmp_path / "mine", predictions()), run(tmp_path / "other", predictions())
    evaluate(mine, "--against", other)
    for row in rows(mine / "against-other.csv"):
        assert (row["difference"], row["low"], row["high"]) == ("0", "0", "0")
    assert rows(mine / "mcnemar-other.csv")[0]["p"] == "1"


def three_classes(seed=0):
    rng = np.random.default_rng(seed)
    given = rng.dirichlet(np.ones(3), 12).astype(np.float32)
    return Predictions(np.arange(12) % 3, given, 3)


@pytest.mark.parametrize(
    ("kept", "arguments", "said"),
    [
        (None, (), "has no predictions.npz: a run writes it when it ends"),
        (predictions(), ("--sensitivity", "0.9"), "has no validation part"),
        (validated(), ("--sensitivity", "1.5"), "sensitivity 1.5: expected a number above 0"),
        (predictions(groups=np.zeros(60, np.int64)), (), "at least two patients"),
        (validated(), ("--against", "nowhere"), "holds no run"),
    ],
)
def test_what_cannot_be_said_is_refused_in_one_sentence(tmp_path, kept, arguments, said):
    folder = run(tmp_path / "run", kept)
    result = evaluate(folder, *arguments)
    assert result.exit_code == 1
    assert said in result.output
    assert result.output.count("\n") == 1
    assert not (folder / "intervals.csv").exists()


def test_a_threshold_lies_between_two_classes(tmp_path):
    folder = run(tmp_path / "run", predictions())
    table = folder / "class_accuracy.csv"
    table.write_text("round,a,b,c\n1,1,1,1\n2,1,1,1\n3,1,1,1\n")
    three_classes().write(folder, ("a", "b", "c"))
    result = evaluate(folder, "--sensitivity", "0.9")
    assert result.exit_code == 1
    assert "tells 3 classes apart" in result.output


@pytest.mark.parametrize("summary", [{"data": "y"}, {}])
def test_runs_on_other_images_are_not_compared(tmp_path, summary):
    mine = run(tmp_path / "mine", predictions())
    kept = predictions()
    if not summary:
        kept = Predictions(1 - kept.labels, kept.final, 3)
    other = run(tmp_path / "other", kept, **summary)
    result = evaluate(mine, "--against", other)
    assert result.exit_code == 1
    assert "were not evaluated on the same test images" in result.output


def test_damaged_predictions_are_named(tmp_path):
    folder = run(tmp_path / "run", predictions())
    (folder / "predictions.npz").write_bytes(b"PK is no archive")
    result = evaluate(folder)
    assert result.exit_code == 1
    assert f"{folder / 'predictions.npz'} cannot be read" in result.output


def test_latex_escapes_what_it_would_take_for_a_command():
    table = Table(
        ["class_name", "±"], [["50 % & #1 {x} ~^", "**1.5 ± 0.2**"], ["\\\n", "…"], ["**", "–"]]
    )
    assert latex(table, "Cost $5").splitlines() == [
        r"\begin{table}",
        r"\centering",
        r"\caption{Cost \$5}",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"class\_name & $\pm$ \\",
        r"\midrule",
        r"50 \% \& \#1 \{x\} \textasciitilde{}\textasciicircum{} & \textbf{1.5 $\pm$ 0.2} \\",
        r"\textbackslash{} & \dots{} \\",
        r"** & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
