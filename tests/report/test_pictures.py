"""A page is one file, for everybody: alternative texts, colours, names, nothing from elsewhere."""

import json
import re
import warnings

import pytest
from helpers import read_json
from report_pages import Parsed, html_of, page_of


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
