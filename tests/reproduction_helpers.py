"""`fedadb reproduce` without Flower, and what every page that it writes must be."""

import re

import numpy as np
import tomli_w
from helpers import REPOSITORY, read_csv, serve, write_run
from PIL import Image

from fedadb_app.assignments import app_defaults
from fedadb_app.comparison import running
from fedadb_app.flower_run import FlowerError

BASE = "cross-device-pathmnist"


class FakeFlower:
    """Stands for Flower: notes what is started, and lets each run end as `ends` says.

    A run leaves made-up curves, or is the whole app in this process.
    """

    def __init__(self, monkeypatch, real=False):
        self.started, self.ends, self.real = [], {}, real
        monkeypatch.setattr(running, "FlowerRun", self.start)
        monkeypatch.setattr("fedadb_app.cli.comparison_progress.watch", self.watch)
        for plot in ("plot_curves", "plot_classes"):  # of the comparison's own folder
            monkeypatch.setattr(f"fedadb_app.comparison.running.{plot}", lambda *arguments: None)

    def start(self, app, values, simulation, home=None):
        self.started.append(f"{values['output-dir'].split('/')[-2]}/{values['run-name']}")
        if self.ends.get(self.started[-1]) == "refused":
            raise FlowerError("flwr run: Invalid run configuration")
        return values, simulation

    def watch(self, progress, flower_run, folder, rounds, name, parent=None, stop=None):
        values, simulation = flower_run
        end = self.ends.get(self.started[-1], "completed")
        if self.real:
            serve({**app_defaults(REPOSITORY), **values}, clients=simulation.num_supernodes)
        else:
            top = 40.0 + 3 * len(values["strategy"]) + values["seed"]
            curve = [top * t / rounds for t in range(1, rounds + 1)]
            write_run(folder, curve, status=end, classes=((80.0, 0.0), (20.0, 40.0)))
            (folder / "config.toml").write_text(tomli_w.dumps(values))
        return f"finished:{end}", "out of memory"


def page_of(folder, item):
    """Check that a page's pictures are there and that it shows no stray number; return it."""
    text = (folder / f"{item}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {item[:-1].capitalize()} {item[-1]}: ")
    assert not re.search(r"\b(nan|inf|None)\b", text)
    pictures = re.findall(r"!\[.+\]\((.+)\)", text)
    assert bool(pictures) == item.startswith("figure")
    for picture in pictures:
        with Image.open(folder / picture) as image:
            assert min(image.size) > 200
            assert len(np.unique(np.asarray(image.convert("L")))) > 20
    for row in read_csv(folder / f"{item}.csv"):
        assert "nan" not in row.values()
    return text
