"""A file that is damaged, cut off or not there costs its own part of a page, and is named."""

import json
import re

import pytest
import torch
from report_pages import CLASSES, Parsed, cells, html_of, page_of, set_status
from safetensors.torch import save

from fedadb_app.errors import DataError
from fedadb_app.runs.reader import read_files


def tensors(**changed):
    kept = {"images": torch.zeros(3, 3, 4, 4), "labels": torch.arange(3)}
    return save(kept | {"confidences": torch.ones(3)} | changed)


def partition(**changed):
    clients = [{"size": 5, "class_counts": [1, 2, 2]}, {"size": 1, "class_counts": [1, 0, 0]}]
    return json.dumps({"rule": "iid", "classes": CLASSES, "clients": clients} | changed)


DAMAGES = [
    ("config.toml", "a ="),
    ("config.toml", "fedadb = 3"),
    ("config.toml", "[fedadb]"),
    ("config.toml", 'num-server-rounds = "many"'),
    ("config.toml", "num-server-rounds = 0"),
    ("partition.json", "[]"),
    ("partition.json", partition(clients=[])),
    ("partition.json", '{"classes": ["cat"], "clients": [{"size": 1, "class_counts": [1]}]}'),
    ("partition.json", partition(clients=[{"size": 3, "class_counts": [1, 2]}])),
    ("partition.json", partition(clients=[{"size": 3, "class_counts": [1, 1, 1]}, {"size": 3}])),
    ("partition.json", partition(clients=[{"size": 3}, {"size": 3, "class_counts": [1, 1, 1]}])),
    ("partition.json", partition(clients=[{"size": 3, "class_counts": ["1", "1", "1"]}])),
    ("class_accuracy.csv", "a,b\n1,2\n"),
    ("class_accuracy.csv", "round,cat\n1,2\n3,2\n2,2\n4,2\n"),
    ("class_accuracy.csv", "round,cat\n1,high\n"),
    ("diagnostics.csv", "round,name,value\n1,loss,low\n"),
    ("diagnostics.csv", "round,name,value\n1,loss,\n"),
    ("diagnostics.csv", "round,name,value,more\n1,loss,1,1\n"),
    ("anchors.safetensors", "not tensors"),
    ("anchors.safetensors", tensors(images=torch.zeros(3, 4, 4))),
    ("anchors.safetensors", tensors(images=torch.zeros(3, 2, 4, 4))),
    ("anchors.safetensors", tensors(images=torch.zeros(3, 3, 0, 4))),
    ("anchors.safetensors", tensors(labels=torch.arange(2))),
    ("anchors.safetensors", tensors(labels=torch.zeros(3))),
    ("anchors.safetensors", tensors(confidences=torch.ones(3, 1))),
]


def damage(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", "{"),
        ("summary.json", "{}"),
        ("summary.json", "[]"),
        ("rounds.csv", "round,accuracy\n1,high\n"),
        ("rounds.csv", "round,clients,bytes_down,bytes_up\n1,1,1,1\n"),
        ("rounds.csv", ""),
        ("rounds.csv", f"round\n{'1' * 200_000}\n"),
    ],
)
def test_without_summary_and_rounds_there_is_no_page(run, tmp_path, name, content):
    (run / name).write_text(content)
    with pytest.raises(DataError, match=f"{name} cannot be read"):
        page_of(run, tmp_path)


@pytest.mark.parametrize(("name", "content"), DAMAGES)
def test_a_damaged_file_is_named_and_the_rest_is_shown(run, tmp_path, name, content):
    damage(run / name, content)
    text = html_of(run, tmp_path)
    missing = Parsed(text.partition("What is not here")[2]).text
    assert f"{run / name} cannot be read: " in missing
    assert f"{name} is not there" not in missing
    assert cells(run / "rounds.csv") in Parsed(text).tables
    assert any("Test accuracy" in words for words in Parsed(text).alternatives())


def test_what_is_left_of_many_damaged_files_is_drawn(run, tmp_path):
    for name, content in dict(DAMAGES).items():
        damage(run / name, content)
    page = page_of(run, tmp_path, drawn=True)
    assert all(f"{run / name} cannot be read: " in page.text for name in dict(DAMAGES))
    drawn = [words.split(".")[1].strip() for words in page.alternatives()]
    assert drawn[:2] == ["Test accuracy (%)", "Loss (cross-entropy)"]


@pytest.mark.parametrize(("name", "content"), dict(DAMAGES).items())  # one per file
def test_a_damaged_file_of_one_run_costs_a_comparison_no_more(comparison, tmp_path, name, content):
    before = page_of(comparison, tmp_path)
    damaged = comparison / "runs" / "fedadb-alpha0.1-seed0" / name
    damage(damaged, content)
    page = page_of(comparison, tmp_path)
    assert f"{damaged} cannot be read: " in page.text
    assert page.values == before.values
    assert page.values["complete runs"] == "4"
    lost = set(before.alternatives()) - set(page.alternatives())
    affected = "Heat map|Class anchor|Weight|lacks|Bar chart. Training"  # of this method
    assert all(re.search(affected, words) for words in lost)
    assert sum("Test accuracy" in words for words in page.alternatives()) == 2


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("class_accuracy.csv", "round,cat\n", "0 rows for 4 evaluated rounds"),
        ("class_accuracy.csv", "round,cat\n1,50.00\n2,50", "1 rows for 4 evaluated rounds"),
        ("diagnostics.csv", "round,name,value\n1,loss,1\n", "it ends with round 1"),
        ("diagnostics.csv", "round,name,value\n", "it ends with round 0"),
    ],
)
def test_what_a_completed_run_lacks_is_named(either, tmp_path, name, content, said):
    folder = either if (either / name).exists() else either / "runs" / "fedadb-alpha0.1-seed0"
    (folder / name).write_text(content)
    text = page_of(either, tmp_path).text
    assert f"{folder / name} does not hold the whole run: {said}" in text


@pytest.mark.parametrize("cut", [1, 3, 50])
def test_a_completed_run_that_lacks_a_round_is_shown_but_does_not_count(
    run, comparison, tmp_path, cut
):
    one = comparison / "runs" / "fedavg-alpha0.1-seed0" / "rounds.csv"
    for path in (run / "rounds.csv", one):
        path.write_text(path.read_text()[:-cut])
    page = page_of(run, tmp_path)
    said = "does not hold the whole run: it says rounds = 3, summary.json 4"
    assert f"{run / 'rounds.csv'} {said}" in page.text
    assert cells(run / "rounds.csv")[:4] in page.tables
    page = page_of(comparison, tmp_path)
    assert f"runs/fedavg-alpha0.1-seed0 does not count: {one} {said}" in page.text
    assert page.values["complete runs"] == "3"


@pytest.mark.parametrize("name", ["config.toml", "partition.json", "diagnostics.csv"])
def test_a_file_less_is_a_picture_less(run, tmp_path, name):
    (run / name).unlink()
    assert cells(run / "rounds.csv") in page_of(run, tmp_path).tables


def test_a_line_that_is_being_written_is_left_out(run, tmp_path):
    before = cells(run / "rounds.csv")
    with (run / "rounds.csv").open("a") as file:
        file.write("5,48.")
    assert before in page_of(run, tmp_path).tables


def test_a_round_whose_diagnostics_are_being_written_is_left_out(run, tmp_path):
    """Each name is written by itself, so that the last round may have some of them."""
    whole = (run / "diagnostics.csv").read_text()
    lines = whole.splitlines(keepends=True)
    assert [line.split(",")[0] for line in lines[-2:]] == ["4", "4"]
    set_status(run, "running")
    until_3 = "".join(lines[:-2])
    for end in range(len(until_3), len(whole)):
        (run / "diagnostics.csv").write_text(whole[:end])
        files = read_files(run)
        assert [list(row) for row in files.diagnostics.rows] == [
            line.strip().split(",") for line in until_3.splitlines()[1:]
        ]
        assert files.faults == {}
    set_status(run, "completed")
    assert "diagnostics.csv does not hold the whole run" in page_of(run, tmp_path).text


def test_with_privacy_a_round_may_have_no_diagnostics(run, tmp_path):
    (run / "diagnostics.csv").write_text("round,name,value\n2,client_states_lost,1\n")
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace('privacy = "none"', 'privacy = "central"'))
    assert 'privacy = "none"' in config
    assert read_files(run).faults == {}
