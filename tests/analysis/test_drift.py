"""How far clients move, out of diagnostics.csv."""

import numpy as np
import pytest
from helpers import read_csv, serve

from fedadb_app.analysis.drift import Drift, plot_drift, read_drift
from fedadb_app.errors import DataError


def test_a_runs_rounds_as_they_stand_in_its_file(values, tmp_path):
    serve({**values, "num-server-rounds": 3})
    folder = tmp_path / "runs" / "run"
    written = read_csv(folder / "diagnostics.csv")
    found = read_drift(folder)
    assert found.rounds.tolist() == [1, 2, 3]
    for name in ("update_norm", "client_update_norm", "client_drift"):
        assert found.values[name].tolist() == [
            float(row["value"]) for row in written if row["name"] == name
        ]
    assert found.rows()[2] == {
        "round": 3,
        **{name: column[2] for name, column in found.values.items()},
    }


def test_a_run_of_an_older_version(values, tmp_path):
    serve(values)
    path = tmp_path / "runs" / "run" / "diagnostics.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "client_drift" not in line))
    said = r"run: diagnostics\.csv has no round with update_norm, .*client_drift: .* older"
    with pytest.raises(DataError, match=said):
        read_drift(path.parent)
    path.unlink()
    with pytest.raises(DataError, match=said):
        read_drift(path.parent)


def test_a_round_that_is_only_half_written_does_not_count(values, tmp_path):
    serve({**values, "num-server-rounds": 3})
    path = tmp_path / "runs" / "run" / "diagnostics.csv"
    whole, lines = read_drift(path.parent), path.read_text().splitlines(keepends=True)
    for missing in (1, 2, 3, 4):  # its names are appended one by one
        path.write_text("".join(lines[:-missing]))
        assert read_drift(path.parent).rows() == whole.rows()[:2]


@pytest.mark.parametrize("line", ["3,client_drift,much\n", "3,client_drift,0.1,0.2\n", "x,y,1\n"])
def test_a_damaged_file(values, tmp_path, line):
    serve(values)
    path = tmp_path / "runs" / "run" / "diagnostics.csv"
    path.write_text(path.read_text() + line)
    with pytest.raises(DataError, match=r"diagnostics\.csv cannot be read"):
        read_drift(path.parent)


def test_a_line_a_run_and_an_axes_a_measure(drawn, tmp_path):
    names = ("update_norm", "client_update_norm", "client_drift")
    runs = {
        run: Drift(np.arange(1.0, 5), {n: np.arange(4) + 10.0 * i for i, n in enumerate(names)})
        for run in ("FedADB", "FedAvg")
    }
    plot_drift(runs, tmp_path / "figure.png")
    axes = drawn[-1].axes
    assert len(axes) == 3
    for i, one in enumerate(axes):
        assert len({line.get_color() for line in one.lines}) == 2
        for line in one.lines:
            assert line.get_xdata().tolist() == [1, 2, 3, 4]
            assert line.get_ydata().tolist() == (np.arange(4) + 10.0 * i).tolist()
    assert {"FedADB", "FedAvg"} <= set(drawn.texts())
