"""Where clients evaluate: what is written of each site, and of all of them."""

import numpy as np
import pytest
from helpers import federation_of_nodes, own_data, read_csv

from fedadb_app.errors import DataError
from fedadb_app.runs.reader import read_files
from fedadb_app.runs.sites import HEADER, Site, over_sites, write_sites


def test_over_sites_by_hand():
    # 50, 80 and 100 % of 10, 20 and 30 images
    sites = {3: Site(10, 5), 1: Site(20, 16), 2: Site(30, 30)}
    found = {name: value for name, _, value in over_sites(sites)}
    assert found["accuracy"] == pytest.approx(100 * 51 / 60)
    assert found["worst-site"] == found["worst-tenth"] == 50
    assert found["spread"] == pytest.approx(np.std([50, 80, 100]))
    assert (found["sites"], found["images"]) == (3, 60)


def test_the_worst_tenth_is_rounded_up():
    sites = {k: Site(100, k) for k in range(11)}
    values = {name: value for name, _, value in over_sites(sites)}
    assert values["worst-tenth"] == 0.5  # of eleven sites two: 0 % and 1 %


def test_means_of_metrics_are_over_the_sites_that_tell_them_by_their_images():
    sites = {
        2: Site(30, 15, metrics={"ece": 0.1, "auc": 0.9}),
        1: Site(10, 5, metrics={"ece": 0.3}),
        3: Site(5, 5),
    }
    found = {name: value for name, _, value in over_sites(sites)}
    assert found["ece"] == pytest.approx((30 * 0.1 + 10 * 0.3) / 40)
    assert (found["ece-sites"], found["auc"], found["auc-sites"]) == (2, 0.9, 1)
    assert not {"brier", "brier-sites", "macro-f1"} & found.keys()


def test_a_row_per_site_and_per_class_that_is_told(tmp_path):
    told = {"ece": 0.125, "balanced-accuracy": 60.0}
    sites = {9: Site(60, 40, metrics=told), 4: Site(84, 65, (50, 34, -1), (35, -1, -1))}
    write_sites(tmp_path, 7, sites, ("a", "b", "c"))
    assert (tmp_path / "sites.csv").read_text().splitlines() == [
        "round,site,class,images,correct,accuracy,balanced-accuracy,macro-f1,auc,ece,brier",
        "7,4,,84,65,77.38,,,,,",
        "7,4,a,50,35,70.00,,,,,",
        "7,4,b,34,,,,,,,",
        "7,9,,60,40,66.67,60,,,0.125,",
    ]


def test_a_federation_of_hospitals(federation, tmp_path):
    """One shares what it finds per class by its own configuration, the other does not."""
    nodes = {100 + k: own_data(tmp_path / f"{k}.npz", [0, 1] * 9, [0, 1] * 30) for k in range(2)}
    nodes[101]["share-class-metrics"] = True
    built = federation(nodes=nodes, **federation_of_nodes(classes=2))
    built.run()
    run = read_files(built.folder.path)
    assert not run.faults
    sites = run.sites()
    assert {(row[0], row[1], row[2], row[3]) for row in sites.rows if row[1] == "100"} == {
        ("2", "100", "", "60")
    }
    ours = [row for row in sites.rows if row[1] == "101"]
    assert [(row[2], row[3]) for row in ours] == [
        *(("", "60"), ("class-0", "30"), ("class-1", "30"))
    ]
    last = {row["metric"]: row["value"] for row in read_csv(run.folder / "metrics.csv")}
    assert (last["ece-sites"], last["brier-sites"], last["auc-sites"]) == ("2", "2", "1")
    (auc,) = [row[8] for row in ours if not row[2]]  # thirty images of each class, and shared
    assert (sites.header[8], last["auc"]) == ("auc", auc)
    assert "macro-f1" not in last
    accuracies = [float(row[5]) for row in sites.rows if not row[2]]
    assert float(last["worst-site"]) == pytest.approx(min(accuracies), abs=0.005)
    assert (last["sites"], last["images"]) == ("2", "120")
    assert run.metric("clients", "accuracy")[2] == pytest.approx(
        float(built.rows[1]["accuracy"]), abs=0.005
    )
    keys = {
        m.metadata.src_node_id: set(m.content["metrics"])
        for m in built.grid.received
        if m.metadata.message_type == "evaluate"
    }
    assert keys[101] - keys[100] == {"class-examples", "class-correct", "auc"}


def test_a_claim_about_classes_that_cannot_be_true_is_a_failure_of_its_node(
    federation, tmp_path, caplog
):
    nodes = {100 + k: own_data(tmp_path / f"{k}.npz", [0, 1] * 9, [0, 1] * 30) for k in range(2)}
    built = federation(nodes=nodes, **federation_of_nodes(classes=2))

    def lies(message, reply):
        reply.content["metrics"]["class-examples"] = [900, 900]
        reply.content["metrics"]["class-correct"] = [1, 1]
        return [reply]

    built.grid.evaluate_faults[100] = lies
    built.run()
    assert "client 100 failed: its counts per class are more than its 60 samples" in caplog.text
    assert {row[1] for row in read_files(built.folder.path).sites().rows} == {"101"}


def test_in_a_simulation_nothing_per_class_is_told(federation):
    built = federation(evaluate="both")
    built.run()
    rows = read_files(built.folder.path).sites().rows
    assert len(rows) == 3
    table = read_csv(built.folder.path / "metrics.csv")
    assert {row["part"] for row in table} == {"test", "clients"}
    # But each site's metrics: all labels are public. Their mean is by images, over all sites.
    last = {r["metric"]: r["value"] for r in table if (r["part"], r["round"]) == ("clients", "2")}
    header = read_files(built.folder.path).sites().header
    for name in ("balanced-accuracy", "macro-f1", "auc", "ece", "brier"):
        assert last[f"{name}-sites"] == "3"
        own = [(int(row[3]), float(row[header.index(name)])) for row in rows]
        mean = sum(n * value for n, value in own) / sum(n for n, _ in own)
        assert float(last[name]) == pytest.approx(mean, rel=1e-4)


@pytest.mark.parametrize(
    "text",
    ["round,site\n", "{}\n1,1,,2,3,150,,,,,\n", "{}\n1,1,,2,1,x,,,,,\n", "{}\n1,1,,2,1,50,,,,x,\n"],
)
def test_a_damaged_table_is_refused(federation, text):
    built = federation(evaluate="clients")
    built.run()
    header = ",".join(HEADER)
    (built.folder.path / "sites.csv").write_text(text.format(header))
    with pytest.raises(DataError, match=r"sites\.csv cannot be read"):
        read_files(built.folder.path).sites()
