"""The page of a comparison: its tables are the files', and it says which runs do not count."""

import re
import shutil

import pytest
from report_pages import cells, html_of, keep_snapshot, page_of, write_run

from fedadb_app.errors import DataError
from fedadb_app.report.tuning_section import tuning_section


def test_a_comparison_shows_its_tables_as_they_stand(comparison, tmp_path):
    page = page_of(comparison, tmp_path)
    assert cells(comparison / "comparison.csv") in page.tables
    lines = (comparison / "comparison.md").read_text().splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("| ")]
    expected = [[cell.strip(" *") for cell in row] for row in rows]
    shown = [row for table in page.tables[:3] for row in table]
    assert shown == expected
    assert page.values["complete runs"] == "4"
    assert page.values["weight-decay"] == "1e-05"


def test_where_seeds_differ_each_picture_says_whose_it_is(comparison, tmp_path):
    """Of fedadb only seed 1 is complete, of fedavg both."""
    shutil.rmtree(comparison / "runs" / "fedadb-alpha0.1-seed0")
    text = html_of(comparison, tmp_path)
    strips = text.partition("Accuracy per class, alpha = 0.1")[2].partition("</section>")[0]
    captions = re.findall("<figcaption>(.*?)</figcaption>", strips)
    assert captions == ["FedAvg, seed 0", "FedADB, seed 1"]
    assert not re.search("seed", strips.partition("<figure")[0], re.I)
    assert "<h2>Who holds what, alpha = 0.1, seed 0</h2>" in text
    assert "<h2>Class anchors of FedADB, alpha = 0.1, seed 1</h2>" in text


def test_a_comparison_says_which_runs_do_not_count(comparison, tmp_path):
    shutil.rmtree(comparison / "runs" / "fedavg-alpha0.1-seed1")
    page = page_of(comparison, tmp_path)
    assert "fedavg-alpha0.1-seed1 is named in comparison.csv, but does not count" in page.text
    assert "fedadb-alpha0.1-seed2.incomplete1 did not complete" in page.text
    assert page.values["complete runs"] == "3"


def test_a_comparison_names_a_damaged_snapshot(comparison, tmp_path):
    kept = comparison / "runs" / "fedadb-alpha0.1-seed0"
    keep_snapshot(kept, 2)
    damaged = kept / "snapshots" / "round0002" / "anchors.safetensors"
    damaged.write_text("not tensors")
    assert f"{damaged} cannot be read" in page_of(comparison, tmp_path).text


def test_a_comparison_of_which_nothing_has_run(comparison, tmp_path):
    (comparison / "comparison.csv").unlink()
    (comparison / "comparison.md").unlink()
    shutil.rmtree(comparison / "runs")
    assert "No run has completed yet" in page_of(comparison, tmp_path).text


def test_a_run_of_a_comparison_with_other_rounds_does_not_count(comparison, tmp_path):
    name = "fedavg-alpha0.1-seed1"
    shutil.rmtree(comparison / "runs" / name)
    write_run(comparison / "runs", name, "fedavg", [10.0, 20.0], anchors=False, seed=1)
    page = page_of(comparison, tmp_path)
    assert f"runs/{name} does not count: it has other rounds than most" in page.text
    assert page.values["complete runs"] == "3"


def test_a_run_in_anothers_folder_does_not_count(comparison, tmp_path):
    runs = comparison / "runs"
    shutil.copytree(runs / "fedavg-alpha0.1-seed1", runs / "fedavg-alpha0.1-seed2")
    page = page_of(comparison, tmp_path)
    said = "its summary.json is that of fedavg-alpha0.1-seed1"
    assert f"runs/fedavg-alpha0.1-seed2 does not count: {said}" in page.text
    assert page.values["complete runs"] == "4"


@pytest.mark.parametrize("content", ["{", "{}"])
def test_without_what_all_runs_share_there_is_no_page(comparison, tmp_path, content):
    (comparison / "comparison.json").write_text(content)
    with pytest.raises(DataError, match=r"comparison\.json cannot be read"):
        page_of(comparison, tmp_path)


@pytest.mark.parametrize("content", [None, "strategy\nfedavg\n", "strategy,alpha,seed\nfedavg,0."])
def test_without_its_table_a_comparison_shows_its_runs(comparison, tmp_path, content):
    before = page_of(comparison, tmp_path)
    (comparison / "comparison.csv").unlink()
    if content:
        (comparison / "comparison.csv").write_text(content)
    page = page_of(comparison, tmp_path)
    assert page.values == before.values
    assert page.alternatives() == before.alternatives()
    names = ", ".join(f"{m}-alpha0.1-seed{seed}" for m in ("fedadb", "fedavg") for seed in (0, 1))
    assert f"The tables lack {names}: the `fedadb compare` that made" in page.text
    assert ("comparison.csv cannot be read" in page.text) == (content == "strategy\nfedavg\n")


def test_a_half_written_table_of_a_comparison_hides_no_method(comparison, tmp_path):
    path = comparison / "comparison.csv"
    path.write_text(path.read_text()[:-5])
    page = page_of(comparison, tmp_path)
    assert page.values["complete runs"] == "4"
    assert "The tables lack fedadb-alpha0.1-seed1: " in page.text


def test_a_comparison_shows_what_its_tests_say(comparison, tmp_path):
    """FedADB is 7 points above FedAvg with both seeds: no spread, so that t is infinite."""
    page = page_of(comparison, tmp_path)
    for name in ("significance.csv", "comparison.csv"):
        assert cells(comparison / name) in page.tables
    assert "mean of the last 50 rounds" in page.text
    matrices = [a for a in page.alternatives() if "Matrix of differences" in a]
    assert len(matrices) == 3
    assert all("Significant: FedADB over FedAvg +7.00 (p = 0)." in alt for alt in matrices)
    for name in ("comparison.tex", "significance.tex"):
        assert " ".join((comparison / name).read_text().split()) in page.text


def test_a_comparison_shows_the_ranks_of_its_methods(comparison, tmp_path):
    header = "statistic,method,mean_rank,blocks,left_out,friedman_p,critical_difference"
    ranks = [("fedavg", 2.8), ("fedadb", 1.0), ("feddyn", 2.2)]
    rows = [f"final,{name},{rank},5,0,0.02,1.48" for name, rank in ranks]
    (comparison / "ranks.csv").write_text("\n".join([header, *rows]) + "\n")
    html = html_of(comparison, tmp_path, drawn=True)
    page = page_of(comparison, tmp_path)
    (diagram,) = [a for a in page.alternatives() if "Critical-difference" in a]
    assert "mean ranks over 5 blocks: FedADB 1.00, FedDyn 2.20, FedAvg 2.80." in diagram
    assert "Critical difference 1.48. Not told apart: FedADB, FedDyn; FedDyn, FedAvg." in diagram
    assert "1.48 = critical difference" in html


def test_accuracy_stands_over_what_it_has_cost(comparison, tmp_path):
    """A round takes 1.334 s and 1.500004 MB; the mean over both seeds ends at 48.9 + 1.5."""
    alternatives = page_of(comparison, tmp_path).alternatives()
    (over_bytes,) = [a for a in alternatives if "Accuracy over bytes" in a]
    (over_seconds,) = [a for a in alternatives if "Accuracy over seconds" in a]
    assert "FedAvg: 50.40 % after 6.00002 MB" in over_bytes
    assert "FedADB: 57.40 % after 6.00002 MB" in over_bytes
    assert "FedAvg: 50.40 % after 5.336 s" in over_seconds


def test_without_tests_a_comparison_is_shown_all_the_same(comparison, tmp_path):
    for path in [*comparison.glob("significance.*"), comparison / "ranks.csv"]:
        path.unlink()
    page = page_of(comparison, tmp_path)
    assert "Do the methods differ?" not in page.text
    assert page.values["complete runs"] == "4"


@pytest.mark.parametrize("name", ["significance.csv", "ranks.csv"])
def test_a_damaged_file_of_tests_is_named(comparison, tmp_path, name):
    (comparison / name).write_text("statistic,alpha\nfinal,0.1\n")
    page = page_of(comparison, tmp_path)
    assert f"{comparison / name} cannot be read: column" in page.text
    assert "Do the methods differ?" in page.text


TRIALS = """method,trial,state,rounds,values,metric,value,chosen,best_by_2,reason
fedavg,0,complete,4,learning-rate=0.01,val-accuracy,61.5,,40,
fedavg,1,complete,4,learning-rate=0.05,val-accuracy,70.25,yes,50,
fedavg,2,ended,2,learning-rate=0.002,val-accuracy,30,,30,
fedadb,0,failed,0,learning-rate=0.01,val-accuracy,,,,not finite
"""


def test_a_comparison_shows_how_its_values_were_tuned(comparison, tmp_path):
    (comparison / "trials.csv").write_text(TRIALS)
    page = page_of(comparison, tmp_path)
    assert cells(comparison / "trials.csv") in page.tables
    dots = [a for a in page.alternatives() if a.startswith("Dot plot")]
    chosen = "Chosen: trial 1, learning-rate=0.05."
    assert dots == [
        f"Dot plot. val-accuracy of FedAvg by trial: 0 61.5, 1 70.25, 2 30. {chosen}",
        "Dot plot. val-accuracy of FedADB by trial: 0 failed.",
    ]
    (section,) = tuning_section(comparison, {})
    assert "val-accuracy" in section.pictures[0].svg


def test_without_tuning_nothing_is_said_of_it(comparison, tmp_path):
    assert "How the values were tuned" not in page_of(comparison, tmp_path).text
    (comparison / "trials.csv").write_text("method,trial\nfedavg,0\n")
    assert (
        f"{comparison / 'trials.csv'} cannot be read: column" in page_of(comparison, tmp_path).text
    )
