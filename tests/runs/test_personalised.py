"""`personalised.csv`, and what is said of it, by hand."""

import pytest

from fedadb_app.runs.personalised import (
    Personalised,
    over_personalised,
    personalised_in_words,
    read_personalised,
    write_personalised,
)

SITES = {
    9: Personalised(10, (5, 1), (8, 1)),  # 50 to 80 %, 10 to 10 %
    4: Personalised(20, (18, 4), (16, 10)),  # 90 to 80 %, 20 to 50 %
    6: Personalised(4, (1, 4), (2, 4)),  # 25 to 50 %, 100 to 100 %
}
HEADS = ("agb", "lcb")


def test_over_sites_by_hand():
    assert over_personalised(SITES, HEADS) == {
        "agb": {
            **{"sites": 3, "mean_before": 55.0, "worst_before": 25.0},
            **{"mean_after": 70.0, "worst_after": 50.0, "gained": 2, "lost": 1},
        },
        "lcb": {
            **{"sites": 3, "mean_before": 43.33, "worst_before": 10.0},
            **{"mean_after": 53.33, "worst_after": 10.0, "gained": 1, "lost": 0},
        },
    }


def test_in_words():
    first, second = personalised_in_words(over_personalised(SITES, HEADS))
    assert first == (
        "personalised, head agb: mean of 3 sites 55.0 to 70.0 %, worst site 25.0 to 50.0 %, "
        "2 gained, 1 lost"
    )
    assert second == (
        "personalised, head lcb: mean of 3 sites 43.33 to 53.33 %, worst site 10.0 to 10.0 %, "
        "1 gained, 0 lost"
    )


def test_a_row_per_site_and_head(tmp_path):
    write_personalised(tmp_path, SITES, HEADS)
    text = (tmp_path / "personalised.csv").read_text()
    assert text.splitlines() == [
        "site,head,images,correct_before,correct_after,accuracy_before,accuracy_after",
        "4,agb,20,18,16,90.00,80.00",
        "4,lcb,20,4,10,20.00,50.00",
        "6,agb,4,1,2,25.00,50.00",
        "6,lcb,4,4,4,100.00,100.00",
        "9,agb,10,5,8,50.00,80.00",
        "9,lcb,10,1,1,10.00,10.00",
    ]
    assert len(read_personalised(text).rows) == 6


@pytest.mark.parametrize(
    "row", ["4,agb,20,21,16,90.00,80.00", "4,agb,20,1,-1,90.00,80.00", "4,agb,2,1,1,nan,50.00"]
)
def test_a_row_that_cannot_be(row):
    header = "site,head,images,correct_before,correct_after,accuracy_before,accuracy_after"
    with pytest.raises(ValueError, match="site 4, head agb"):
        read_personalised(f"{header}\n{row}\n")
    with pytest.raises(ValueError, match="its columns are not"):
        read_personalised("site,head\n")
