"""What a public project has beside its code: metadata, a citation, changelog, workflows, pages."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import REPOSITORY

PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")])


def load(name: str) -> Any:
    """A YAML file of the repository; its strings stay strings."""
    return yaml.load((REPOSITORY / name).read_text(), yaml.BaseLoader)


def test_the_version_stands_in_one_place():
    """`flwr` reads it from pyproject.toml; anything else would have to be kept equal by hand."""
    files = [*REPOSITORY.glob("*.py"), REPOSITORY / "CITATION.cff"]
    for room in ("fedadb_app", "strategies"):
        files += (REPOSITORY / room).rglob("*.py")
    for file in files:
        assert not re.search(r"^__version__|^version:", file.read_text(), re.MULTILINE), file
    assert load("CITATION.cff")["cff-version"] == "1.2.0"


@pytest.mark.parametrize("room", ["fedadb_app", "strategies"])
def test_types_are_for_others_too(room):
    assert (REPOSITORY / room / "py.typed").exists()


def test_the_pythons_that_are_promised_are_tested():
    promised = {
        text.rpartition(" :: ")[2]
        for text in PROJECT["classifiers"]
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", text)
    }
    matrix = load(".github/workflows/tests.yml")["jobs"]["fast"]["strategy"]["matrix"]
    assert set(matrix["python"]) == promised
    assert PROJECT["requires-python"] == f">={min(promised, key=lambda v: int(v[2:]))}"


def test_the_citation_and_the_bibtex_name_the_same_paper():
    paper = load("CITATION.cff")["preferred-citation"]
    entry = (REPOSITORY / "README.md").read_text().partition("@misc{")[2].partition("\n}")[0]
    fields = dict(re.findall(r"^ *(\w+) *= *\{(.*?)\},?$", entry, re.MULTILINE))
    assert fields["title"].replace("{", "").replace("}", "") == paper["title"]
    assert fields["year"] == paper["year"]
    names = [f"{author['family-names']}, {author['given-names']}" for author in paper["authors"]]
    assert fields["author"].split(" and ") == names


def test_the_changelog_keeps_its_form():
    """As keepachangelog.com has it: newest first, and each line under its kind of change."""
    lines = (REPOSITORY / "CHANGELOG.md").read_text().splitlines()
    versions = [line for line in lines if line.startswith("## ")]
    assert versions[0] == "## [Unreleased]" or PROJECT["version"] in versions[0]
    assert all(re.fullmatch(r"## \[.+\]( - \d{4}-\d\d-\d\d)?", line) for line in versions)
    kinds = {line for line in lines if line.startswith("### ")}
    assert kinds <= {
        f"### {kind}" for kind in ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
    }
    under = ""
    for line in lines:
        under = line if line.startswith("#") else under
        if line.startswith("* "):
            assert under.startswith("### "), line


# --- pages ----------------------------------------------------------------------------------


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What a page's headings are called in links, as GitHub does it."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        text = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page):
    if page.name.startswith("add-a-"):  # names files that the reader writes
        return
    folders = "fedadb_app|strategies|tests|benchmarks|examples|docs"
    for name in re.findall(rf"`((?:{folders})/[\w./-]*)`", prose(page)):
        assert (REPOSITORY / name).exists(), f"{page.name}: {name}"


def test_every_page_is_listed_in_the_readme():
    readme = (REPOSITORY / "README.md").read_text()
    for page in (REPOSITORY / "docs").glob("*.md"):
        assert f"(docs/{page.name}" in readme, page.name
