"""The `fedadb` command, up to the point where Flower takes over."""

import io
import subprocess
import sys

import pytest
from helpers import REPOSITORY
from rich.console import Console
from typer.testing import CliRunner

from fedadb_app.cli import progress as progress_module
from fedadb_app.cli.main import COMMANDS, main
from fedadb_app.errors import DataError
from fedadb_app.runs.tables import read_accuracies

runner = CliRunner()


def call(*arguments):
    return runner.invoke(main, list(arguments))


@pytest.fixture
def never_started(monkeypatch):
    """Fail if a command gets as far as starting a run."""

    def start(*args, **kwargs):
        raise AssertionError("a run was started")

    monkeypatch.setattr("fedadb_app.cli.run.FlowerRun", start)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("alhpa=0.2", 'unknown key "alhpa" in the run configuration; did you mean "alpha"?'),
        ("learning-rate=abc", 'learning-rate="abc"'),
        ('learning-rate="abc"', "expected a finite number greater than 0"),
        ("fraction-train=1.5", "at most 1"),
        ('strategy="fedadd"', 'did you mean "fedadb"?'),
        ('output-dir="results"', "absolute path"),
    ],
)
def test_a_mistake_gets_one_sentence_before_any_run(never_started, config, said):
    result = call("run", "--app", str(REPOSITORY), "-c", config)
    assert result.exit_code == 1
    assert said in result.output
    assert result.output.count("\n") == 1
    assert "Traceback" not in result.output


def test_several_run_configs_add_up(never_started):
    result = call("run", "--app", str(REPOSITORY), "-c", "alpha=0", "-c", "seed=3")
    assert result.exit_code == 1
    assert "alpha=0 is not allowed" in result.output


def test_a_path_is_shown_as_it_was_given():
    result = call("data", "/nope/[ct]/[/b].npz")
    assert result.exit_code == 1
    assert "/nope/[ct]/[/b].npz" in result.output


def test_a_folder_that_is_no_checkout_is_refused(never_started, tmp_path):
    result = call("run", "--app", str(tmp_path))
    assert result.exit_code == 1
    assert "is not a checkout of this app" in result.output


def test_an_existing_run_is_not_overwritten(never_started, tmp_path):
    (tmp_path / "mine").mkdir()
    config = f'output-dir="{tmp_path}" run-name="mine"'
    result = call("run", "--app", str(REPOSITORY), "-c", config)
    assert result.exit_code == 1
    assert "already exists" in result.output


class FinishedRun:
    """A run that has ended as `outcome` says."""

    outcome = ("finished:completed", "")

    def __init__(self, app, values, simulation, superlink=""):
        from pathlib import Path

        folder = Path(values["output-dir"]) / values["run-name"]
        folder.mkdir(parents=True)
        (folder / "rounds.csv").write_text("round,accuracy\n1,10.00\n2,\n3,30.00\n")
        (folder / "summary.json").write_text(
            '{"status": "completed", "final_accuracy": 30.0, "best5_accuracy": 20.0,'
            '"last50_accuracy": 20.0}'
        )

    def wait(self, folder, on_look):
        on_look()
        return self.outcome


def test_run_reports_the_accuracy_and_where_the_results_are(monkeypatch, tmp_path):
    monkeypatch.setattr("fedadb_app.cli.run.FlowerRun", FinishedRun)
    result = call("run", "--app", str(REPOSITORY), "-c", f'output-dir="{tmp_path}" run-name="r"')
    assert result.exit_code == 0, result.output
    assert "final 30.0 %" in result.output
    assert str(tmp_path / "r") in result.output


def test_a_run_whose_folder_lies_on_another_machine(monkeypatch, tmp_path):
    class Elsewhere(FinishedRun):
        def __init__(self, app, values, simulation, superlink=""):
            assert (simulation, superlink) == (None, "hospitals")

    monkeypatch.setattr("fedadb_app.cli.run.FlowerRun", Elsewhere)
    config = f'output-dir="{tmp_path}" run-name="r"'
    result = call("run", "--app", str(REPOSITORY), "--superlink", "hospitals", "-c", config)
    assert result.exit_code == 0, result.output
    assert "accuracy:" not in result.output
    assert str(tmp_path / "r") in result.output


def test_run_fails_when_flower_says_so_whatever_the_folder_says(monkeypatch, tmp_path):
    class Failed(FinishedRun):
        outcome = ("finished:failed", "Simulation Runtime crashed")

    monkeypatch.setattr("fedadb_app.cli.run.FlowerRun", Failed)
    result = call("run", "--app", str(REPOSITORY), "-c", f'output-dir="{tmp_path}" run-name="r"')
    assert result.exit_code == 1
    assert "Simulation Runtime crashed" in result.output


class SlowRun:
    """A run whose folder appears after 12 s, with some rounds; each further one takes 100 s."""

    def __init__(self, clock, rounds_before=0):
        self.clock = clock
        self.rounds_before = rounds_before

    def wait(self, folder, on_look):
        on_look()
        self.clock.sleep(12)
        folder.mkdir()
        (folder / "summary.json").write_text('{"status": "running"}')
        for done in range(self.rounds_before, 5):
            rows = [f"{t},{10 * t}.00\n" for t in range(1, done + 1)]
            (folder / "rounds.csv").write_text("round,accuracy\n" + "".join(rows))
            on_look()
            self.clock.sleep(50)
            on_look()
            self.clock.sleep(50)
        return "finished:completed", ""


@pytest.mark.parametrize(
    ("rounds_before", "expected"),
    [(0, {0: None, 1: 400, 2: 300, 3: 200, 4: 100}), (2, {0: None, 2: None, 3: 200, 4: 100})],
)
def test_the_time_left_is_that_of_the_rounds(clock, tmp_path, rounds_before, expected):
    """Neither the start nor the rounds before a resume count; a slow round is not forgotten."""
    progress = progress_module.progress_bars()
    progress.get_time = clock.monotonic
    shown = {}

    class Watched(SlowRun):
        def wait(self, folder, on_look):
            def look():
                on_look()
                (task,) = progress.tasks
                shown[task.completed] = task.time_remaining

            return super().wait(folder, look)

    progress_module.watch(progress, Watched(clock, rounds_before), tmp_path / "run", 5, "run")
    assert shown == expected


def test_a_narrow_screen_shows_what_counts(clock, tmp_path, monkeypatch):
    screen = Console(file=io.StringIO(), width=80)
    monkeypatch.setattr(progress_module, "err", screen)
    progress = progress_module.progress_bars()
    progress.get_time = clock.monotonic

    class Watched(SlowRun):
        def wait(self, folder, on_look):
            ended = super().wait(folder, on_look)
            screen.print(progress.get_renderable())
            return ended

    name = "fedadb-pathmnist-seed0-20261101-120000"
    progress_module.watch(progress, Watched(clock), tmp_path / "run", 5, name)
    (line,) = screen.file.getvalue().splitlines()
    assert line.startswith("fedadb-pathmnist")
    assert line.rstrip().endswith(" 80 % 0:01:40 accuracy 40.00 %, best five 25.00 %")


def test_accuracies_skip_rounds_that_were_not_evaluated(tmp_path):
    assert read_accuracies(tmp_path) == ([], 0)
    (tmp_path / "rounds.csv").write_text("round,accuracy\n1,10.00\n2,\n3,30.00\n")
    assert read_accuracies(tmp_path) == ([10.0, 30.0], 3)


def test_a_round_that_is_being_written_does_not_count_yet(tmp_path):
    whole = "round,accuracy\n1,10.00\n2,\n3,30.00\n"
    for end in range(len(whole)):
        (tmp_path / "rounds.csv").write_text(whole[:end])
        lines = max(0, whole[:end].count("\n") - 1)
        assert read_accuracies(tmp_path) == ([[], [10.0], [10.0]][lines], lines)


def test_an_accuracy_that_is_no_number_is_named(tmp_path):
    (tmp_path / "rounds.csv").write_text("round,accuracy\n1,abc\n")
    with pytest.raises(DataError, match=r"rounds\.csv cannot be read: .*abc"):
        read_accuracies(tmp_path)


def test_data_describes_a_data_set_and_refuses_an_unknown_one():
    result = call("data", "digits")
    assert result.exit_code == 0
    assert "1437 training and 360 test images of 28x28 pixels" in result.output.replace("\n", " ")
    result = call("data", "nosuchset")
    assert result.exit_code == 1
    assert 'dataset="nosuchset" is unknown' in result.output


# --- what a command imports -----------------------------------------------------------------


def test_the_list_of_commands_says_what_each_says_itself():
    for name, entry in COMMANDS.items():
        help_of_command = entry.command(name).help
        assert help_of_command is not None
        assert help_of_command.splitlines()[0] == entry.line, name


@pytest.mark.parametrize("arguments", ["--help", "certificates --help", "audit --help"])
def test_what_trains_nothing_imports_no_pytorch(arguments):
    """A hospital's shell script calls them often; PyTorch alone takes three seconds."""
    code = (
        f"import sys; sys.argv[1:] = {arguments.split()!r}\n"
        "from fedadb_app.cli.main import main\n"
        "try:\n    main()\n"
        "finally:\n    assert not {'torch', 'scipy', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout
