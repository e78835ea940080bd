"""`fedadb reproduce` called with what it cannot do: one sentence, and nothing is changed."""

import pytest
from helpers import REPOSITORY
from reproduction_helpers import page_of
from typer.testing import CliRunner

from fedadb_app.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["table7"], "table7 is none of table1, "),
        (["figure1"], "figure1 is none of table1, "),
        (["table1", "tabel2"], "tabel2 is none of table1, "),
        (["table3", "--only", "fedprox"], "--only fedprox: no such data set"),
        (["table1", "table3", "--only", "use-lcb=false,cross-silo"], "nothing there is about all"),
        (
            ["table3", "--only", "svhn"],
            "choose among pathmnist, fedadb, fedavg, cross-device, alpha=0.1, use-anchors=false",
        ),
        (["table3", "--seeds", "0,x"], "--seeds 0,x: expected numbers"),
        (["table3", "--seeds", "-1"], "seed=-1 is not allowed"),
        (["table3", "--seeds", ","], "--seeds ,: expected at least one number"),
        (["table3", "-c", "num-server-rounds=5"], "num-server-rounds is set by table3 itself"),
        (["table3", "-c", 'dataset="digits"'], "dataset is set by table3 itself"),
        (["table3", "-c", "seed=3"], "seed is set by table3 itself"),
        (["table3", "-c", 'strategy="fedexp"'], "strategy is set by table3 itself"),
        (["table3", "-c", "alpha=0.5"], "alpha is set by table3 itself"),
        (["table3", "-c", 'output-dir="/x"'], "output-dir is set by table3 itself"),
        (["table3", "-c", "alhpa=1"], 'did you mean "alpha"?'),
        (["table3", "-c", "momentum=2.0"], "momentum=2.0 is not allowed"),
        (["table3", "-c", 'evaluate="none"'], "leaves the server nothing to compare"),
        # said before table1's first run, not after its last
        (["table1", "table4", "-c", 'fedadb.beta="0.5"'], "fedadb.beta is set by table4 itself"),
    ],
)
def test_a_mistake_gets_one_sentence_before_the_first_run(flower, call, tmp_path, arguments, said):
    result = call(*arguments)
    assert result.exit_code == 1
    assert said in result.output
    assert result.output.count("\n") == 1
    assert flower.started == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments", [["table1", "--scale", "tiny"], ["table1", "--rounds", "-1"], []]
)
def test_typer_refuses(flower, call, arguments):
    assert call(*arguments).exit_code == 2
    assert flower.started == []


def test_no_checkout(flower, tmp_path):
    result = CliRunner().invoke(main, ["reproduce", "table1", "--app", str(tmp_path)])
    assert result.exit_code == 1
    assert "is not a checkout of this app" in result.output


def test_other_settings_are_refused_and_nothing_is_changed(flower, call, tmp_path):
    assert call("table3", "--only", "fedavg").exit_code == 0
    before = (tmp_path / "out" / "small" / "table3.md").read_text()
    started = flower.started.copy()
    result = call("table3", "-c", "batch-size=64")
    assert result.exit_code == 1
    assert result.output.count("other settings (run-config.batch-size)") == 1
    assert "1 problems, named above" in result.output
    assert flower.started == started  # not even what is missing, beside other settings
    result = call("table3", "--only", "fedavg", "--client-cpus", "2")
    assert result.exit_code == 1
    assert "federation.client_cpus" in result.output
    assert (tmp_path / "out" / "small" / "table3.md").read_text() == before


def test_where_things_lie_may_differ(flower, call, tmp_path):
    assert call("table3").exit_code == 0
    before = page_of(tmp_path / "out" / "small", "table3")
    started = flower.started.copy()
    arguments = ["--app", str(REPOSITORY), "--output", str(tmp_path / "out")]
    for elsewhere in ([], ["-c", 'data-dir="/there" device="cpu" checkpoint-every=5']):
        result = CliRunner().invoke(main, ["reproduce", "table3", *arguments, *elsewhere])
        assert result.exit_code == 0, result.output
        assert page_of(tmp_path / "out" / "small", "table3") == before
    assert flower.started == started


def test_an_output_that_cannot_be_written(flower, call, tmp_path):
    (tmp_path / "file").write_text("")
    result = call("table3", output=tmp_path / "file")
    assert result.exit_code == 1
    assert "cannot be written to" in result.output
    assert flower.started == []


def test_a_page_that_cannot_be_written(flower, call, tmp_path):
    (tmp_path / "out" / "small" / "table3.md").mkdir(parents=True)
    result = call("table3", "table4")
    assert result.exit_code == 1
    assert "table3.md" in result.output
    assert "Traceback" not in result.output
    page_of(tmp_path / "out" / "small", "table4")


def test_the_help_names_the_items():
    result = CliRunner().invoke(main, ["reproduce", "--help"])
    text = " ".join(result.output.split())
    assert "ITEMS are table1 to table6, figure2 to figure9, or all." in text
