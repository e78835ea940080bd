"""A page is one file, for everybody: alternative texts, colours, names, nothing from elsewhere."""

import json
import re
import warnings

import pytest
from helpers import read_json
from hypothesis import given
from hypothesis import strategies as st
from report_pages import Parsed, html_of, page_of

from fedadb_app.report.svg import ink_on


@pytest.fixture(params=["run", "comparison"])
def text(request, drawn):
    return drawn[request.param]


def test_every_picture_has_alternative_text_of_its_own(text):
    page = Parsed(text)
    alternatives = page.alternatives()
    assert len(page.all("svg")) >= 8
    assert all(len(text) > 20 for text in alternatives)
    assert all(a["role"] == "img" for a in page.all("svg"))
    assert len(set(alternatives)) == len(alternatives)


def test_nothing_is_fetched_and_nothing_is_executed(text):
    page = Parsed(text)
    assert not re.search("https?:|//[a-z]|@import", re.sub('base64,[^"]*', "", text))
    assert not page.all("script")
    assert not page.all("link")
    sources = [v for _, a in page.elements for k, v in a.items() if k in ("src", "href")]
    assert all(source.startswith(("data:", "#")) for source in sources)
    assert set(re.findall(r"url\((.)", text)) <= {"#"}


def test_identifiers_are_unique_and_every_reference_is_met(text):
    ids = [a["id"] for _, a in Parsed(text).elements if "id" in a]
    assert len(set(ids)) == len(ids)
    assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', text)) <= set(ids)


def test_colours_are_the_pages_own(drawn):
    pictures = re.findall("<svg.*?</svg>", drawn["run"], re.S)
    assert pictures
    for svg in pictures:
        assert "var(--s" in svg or "<image" in svg
        assert not re.search("(fill|stroke): #", svg)


def test_names_are_escaped(run, tmp_path):
    page = page_of(run, tmp_path)
    assert "wet" not in [tag for tag, _ in page.elements]
    assert "dog & <wet>" in page.text


def test_names_are_drawn_as_they_are(run, tmp_path):
    r"""`5$ \foo 6$` is no mathematics, and a control character no part of an SVG."""
    names = [r"5$ \foo 6$", "costs $5 or $6", "bell\x07 rings"]
    manifest = read_json(run / "partition.json") | {"classes": names}
    (run / "partition.json").write_text(json.dumps(manifest))
    text = (run / "class_accuracy.csv").read_text().partition("\n")[2]
    (run / "class_accuracy.csv").write_text(",".join(["round", *names]) + "\n" + text)
    drawn = re.findall("<text[^>]*>(.*?)</text>", html_of(run, tmp_path, drawn=True), re.S)
    for name in (r"5$ \foo 6$"[:12], "bell rings"):
        assert drawn.count(name) == 2, name
    assert "costs $5 or $6" in drawn


def test_the_same_files_give_the_same_page(written, drawn, tmp_path):
    assert html_of(written["run"], tmp_path, drawn=True) == drawn["run"]


def test_names_that_matplotlib_cannot_draw_are_the_browsers(run, tmp_path):
    names = ["肺炎", "正常", "half \ud800"]
    manifest = read_json(run / "partition.json") | {"classes": names}
    (run / "partition.json").write_text(json.dumps(manifest))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = html_of(run, tmp_path, drawn=True)
    drawn = re.findall("<text[^>]*>(.*?)</text>", text, re.S)
    assert {"肺炎", "正常"} <= set(drawn)
    assert "<figcaption>half ?<small>" in text  # half a letter is none


@given(*3 * [st.floats(0, 1)])
def test_what_stands_on_a_cell_can_be_read_on_any_colour(red, green, blue):
    """WCAG 2.2: (lighter + 0.05) / (darker + 0.05) of the relative luminances, at least 4.5."""

    def linear(c):
        return c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4

    ground = 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)
    ink = {"black": 0.0, "white": 1.0}[ink_on(red, green, blue)]
    assert (max(ink, ground) + 0.05) / (min(ink, ground) + 0.05) >= 4.5
