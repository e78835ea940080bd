"""What docs/run.md, docs/compare.md and configs/schema.json say of keys is what the classes say."""

import importlib.util
import json
import tomllib

import pytest
from helpers import REPOSITORY

from fedadb_app.config import RunConfig
from strategies.registry import METHODS, STRATEGIES

SCRIPT = REPOSITORY / "docs" / "write_tables.py"
TABLES = {"": RunConfig, **{name: method.params for name, method in METHODS.items()}}


@pytest.fixture(scope="module")
def writer():
    spec = importlib.util.spec_from_file_location("write_tables", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_files_are_what_the_classes_say(writer):
    for path, text in writer.files().items():
        assert path.read_text() == text, f"run: python {SCRIPT.relative_to(REPOSITORY)}"


def test_a_table_that_says_something_else_is_put_right(writer):
    page = (REPOSITORY / "docs" / "run.md").read_text()
    stale = page.replace("| `seed` | `0` |", "| `seed` | `1` |")
    assert stale != page
    assert writer.with_tables(stale) == page


@pytest.mark.parametrize("name", TABLES)
def test_every_key_has_a_meaning_in_a_line(name):
    for key, schema in TABLES[name].described().items():
        assert schema.get("description"), key
        assert "\n" not in schema["description"]


def test_every_key_has_a_row(writer):
    rows = "\n".join(writer.tables()[n] for n in ("shared keys", "keys of the baselines"))
    for name, table in TABLES.items():
        for key in table.defaults():
            assert rows.count(f"\n| `{name + '.' if name else ''}{key}` |") == 1, key


def test_an_editor_knows_the_keys_that_flower_takes():
    """Those of pyproject.toml, each with its table, and no others."""
    schema = json.loads((REPOSITORY / "configs" / "schema.json").read_text())
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    config = project["tool"]["flwr"]["app"]["config"]
    assert schema["properties"].keys() == config.keys()
    assert schema["additionalProperties"] is False
    for name, value in config.items():
        if isinstance(value, dict):
            assert schema["properties"][name]["properties"].keys() == value.keys()
    assert schema["properties"]["strategy"]["enum"] == list(STRATEGIES)
