"""A model for each site on a run's page: the file's table and the summary's words."""

import json

from report_pages import cells, page_of

from fedadb_app.runs.personalised import Personalised, over_personalised, write_personalised

SITES = {3: Personalised(10, (5,), (8,)), 4: Personalised(20, (18,), (16,))}


def personalise(run):
    write_personalised(run, SITES, ["head"])
    summary = json.loads((run / "summary.json").read_text())
    summary["personalised"] = over_personalised(SITES, ["head"])
    (run / "summary.json").write_text(json.dumps(summary))


def test_every_site_before_and_after(run, tmp_path):
    assert "A model for each site" not in page_of(run, tmp_path).text
    personalise(run)
    page = page_of(run, tmp_path)
    assert cells(run / "personalised.csv") in page.tables
    assert (
        "Personalised, head head: mean of 2 sites 70.0 to 80.0 %, worst site 50.0 to 80.0 %, "
        "1 gained, 1 lost." in page.text
    )


def test_a_damaged_table_is_named(run, tmp_path):
    personalise(run)
    (run / "personalised.csv").write_text("site,head\n3,head\n")
    page = page_of(run, tmp_path)
    assert f"{run / 'personalised.csv'} cannot be read: its columns are not" in page.text
    assert "A model for each site" not in page.text
