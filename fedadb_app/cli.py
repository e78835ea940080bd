"""The `fedadb` command: what Flower's own command line lacks."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from fedadb_app.certificates import CA_DAYS, issue
from fedadb_app.comparison.grid import (
    CELL_KEYS,
    Cell,
    Grid,
    Outcome,
    is_complete,
    open_folder,
    run_missing,
)
from fedadb_app.comparison.plots import plot_classes, plot_curves
from fedadb_app.comparison.tables import Reading, read_run, write_csv, write_markdown
from fedadb_app.config import Scalar
from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import ConfigError, FedADBError
from fedadb_app.flower import (
    FlowerRun,
    Simulation,
    app_defaults,
    parse_assignments,
    read_summary,
)
from fedadb_app.node_check import CHECKS, check_node
from fedadb_app.node_check.settings import NodeSettings
from fedadb_app.report.pages import write_report
from fedadb_app.results import accuracy_summary, read_accuracies
from strategies import METHODS, read_run_config

main = typer.Typer(
    help="Run and compare federated-learning methods on this machine's SuperLink.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_COLUMNS = (  # on a narrow screen the name and the bar give way
    TextColumn("{task.description}", table_column=Column(ratio=2, no_wrap=True)),
    BarColumn(None, table_column=Column(ratio=1)),
    TextColumn("{task.percentage:>3.0f} %"),
    TimeRemainingColumn(),
    TextColumn("{task.fields[note]}"),
)
Number = TypeVar("Number", int, float)

_out = Console(highlight=False)
_err = Console(stderr=True, highlight=False)

AppOption = Annotated[Path, typer.Option("--app", help="Checkout of this app.")]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option("--run-config", "-c", help="key=value pairs as for `flwr run`, or a TOML file."),
]
SupernodesOption = Annotated[int, typer.Option("--num-supernodes", min=1, help="Clients K.")]
CpusOption = Annotated[
    int, typer.Option("--client-cpus", min=1, help="CPUs (torch threads) of one client.")
]
GpusOption = Annotated[float, typer.Option("--client-gpus", min=0, help="GPU share of one client.")]


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Turn an error a user can cause into one sentence and exit code 1."""
    try:
        yield
    except FedADBError as error:
        _fail(str(error))


def _fail(sentence: str) -> NoReturn:
    _err.print(f"[red]error:[/] {escape(sentence)}", soft_wrap=True)
    raise typer.Exit(1)


def _progress() -> Progress:
    # Rich forgets after 30 s how fast a task was, which may be before the first round has ended.
    return Progress(*_COLUMNS, console=_err, expand=True, speed_estimate_period=math.inf)


@main.command()
def run(
    run_config: ConfigOption = None,
    num_supernodes: SupernodesOption = 2,
    client_cpus: CpusOption = 1,
    client_gpus: GpusOption = 0.0,
    superlink: Annotated[
        str, typer.Option(help="SuperLink connection with real SuperNodes; not simulated.")
    ] = "",
    app: AppOption = Path(),
) -> None:
    """Run one federation, show its progress, and exit with 1 unless it completed."""
    with _one_sentence():
        values = checked_values(app, run_config or [])
        folder = Path(str(values["output-dir"])) / str(values["run-name"])
        simulation = None if superlink else Simulation(num_supernodes, client_cpus, client_gpus)
        flower_run = FlowerRun(app, values, simulation, superlink)
        rounds = int({**app_defaults(app), **values}["num-server-rounds"])
        with _progress() as progress:
            status, details = watch(progress, flower_run, folder, rounds, str(values["run-name"]))
        if status != "finished:completed":
            reason = read_summary(folder).get("reason") or details
            _fail(f"the run {status.removeprefix('finished:')}: {reason}; results so far: {folder}")
        summary = read_summary(folder)
        _out.print(
            f"accuracy: final {summary['final_accuracy']} %, "
            f"best five rounds {summary['best5_accuracy']} %"
        )
        _out.print(f"results: {folder}", soft_wrap=True, markup=False)


@main.command()
def data(
    name: Annotated[str, typer.Argument(help="As the run configuration names it.")],
    data_dir: Annotated[str, typer.Option(help="Where files lie or are downloaded to.")] = "",
) -> None:
    """Download (where needed), check and prepare a data set on this machine."""
    with _one_sentence():
        dataset = open_dataset(name, data_dir, download=True)
        channels, height, width = dataset.image_shape
        _out.print(
            f"{name}: {len(dataset.train_labels)} training and {len(dataset.test_labels)} test "
            f"images of {height}x{width} pixels and {channels} channel(s), "
            f"{dataset.num_classes} classes",
            markup=False,
        )


@main.command()
def certificates(
    output: Annotated[Path, typer.Option(help="Folder; a CA that lies there is used.")],
    host: Annotated[
        list[str] | None, typer.Option(help="DNS name or IP address of the SuperLink; repeatable.")
    ] = None,
    node: Annotated[
        list[str] | None, typer.Option(help="A SuperNode to make a key pair for; repeatable.")
    ] = None,
    days: Annotated[
        int, typer.Option(min=1, max=CA_DAYS, help="Validity of the SuperLink's certificate.")
    ] = 365,
) -> None:
    """Make what TLS and node authentication need; nothing that exists is overwritten.

    To renew the SuperLink's certificate, move server.crt away, run this again with the same --host
    and --output, and restart the SuperLink: CA and key are kept, and the nodes need nothing. To
    replace a node's key, make one under a new name, and let the SuperLink register the new and
    unregister the old. To replace the CA, use a new folder, and give its ca.crt to every node.
    """
    with _one_sentence():
        for file in issue(output.expanduser(), host or [], node or [], days):
            _out.print(f"{file.path}: {file.purpose}", soft_wrap=True, markup=False)


@main.command(name="check-node")
def check(
    superlink: Annotated[str, typer.Option(help="The SuperLink, host:port.")],
    root_certificates: Annotated[Path, typer.Option(help="The CA's certificate, ca.crt.")],
    auth_supernode_private_key: Annotated[Path, typer.Option(help="This node's private key.")],
    node_config: Annotated[str, typer.Option(help="As for `flower-supernode`.")],
    run_config: ConfigOption = None,
) -> None:
    """Say whether this machine can join; takes the options of `flower-supernode`.

    The SuperLink is asked whether it is there and knows the node's public key; nothing else leaves
    this machine.
    """
    with _one_sentence():
        config, _, _ = read_run_config(_parse_all(run_config or []))
        settings = NodeSettings(
            superlink,
            root_certificates.expanduser(),
            auth_supernode_private_key.expanduser(),
            parse_assignments(node_config),
            config,
        )
        failed = 0
        for result in check_node(settings):
            failed += not result.passed
            mark = "[green]pass[/]" if result.passed else "[red]FAIL[/]"
            _out.print(f"{mark}  {result.name:<9}  {escape(result.text)}", soft_wrap=True)
        if failed:
            _fail(f"{failed} of {len(CHECKS)} checks failed: this machine cannot join yet")


@main.command()
def compare(
    output: Annotated[Path, typer.Option(help="Folder of the comparison; continued if it exists.")],
    strategies: Annotated[str, typer.Option(help="Names with commas, or all.")] = "all",
    seeds: Annotated[str, typer.Option(help="Whole numbers with commas.")] = "0",
    alphas: Annotated[
        str, typer.Option(help="Numbers with commas; default: the run-config's.")
    ] = "",
    run_config: ConfigOption = None,
    num_supernodes: SupernodesOption = 2,
    client_cpus: CpusOption = 1,
    client_gpus: GpusOption = 0.0,
    reference: Annotated[str, typer.Option(help="Method of the paired differences.")] = next(
        iter(METHODS)
    ),
    app: AppOption = Path(),
) -> None:
    """Run every method with every seed and alpha, one after another, and set them side by side."""
    with _one_sentence():
        simulation = Simulation(num_supernodes, client_cpus, client_gpus)
        grid = read_grid(app, run_config or [], strategies, seeds, alphas, simulation)
        if reference not in METHODS:
            raise ConfigError(f"--reference {reference}: choose one of {', '.join(METHODS)}")
        folder = output.expanduser().absolute()
        with open_folder(folder, grid):
            failed = run_comparison(folder, grid, app, reference)
        _out.print(f"tables and pictures: {folder}", soft_wrap=True, markup=False)
        if failed:
            _fail(f"{len(failed)} runs failed and do not count; run the same command again")


@main.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run or of a comparison.")],
    output: Annotated[
        Path | None, typer.Option(help="The HTML file; default: report.html in that folder.")
    ] = None,
) -> None:
    """Write one HTML page about a run or a comparison, finished or not."""
    with _one_sentence():
        folder = folder.expanduser().absolute()
        path = (output or folder / "report.html").expanduser().absolute()
        write_report(folder, {name: method.title for name, method in METHODS.items()}, path)
        _out.print(f"report: {path}", soft_wrap=True, markup=False)


def read_grid(
    app: Path,
    run_config: list[str],
    strategies: str,
    seeds: str,
    alphas: str,
    simulation: Simulation,
) -> Grid:
    """Check every value of a comparison before its first run.

    Raises
    ------
    ConfigError
        For a value that is not allowed, or a key that the comparison sets itself.
    """
    values = _parse_all(run_config)
    if own := [key for key in CELL_KEYS if key in values]:
        raise ConfigError(
            f"{own[0]} is set by the comparison itself: "
            f"use --strategies, --seeds, --alphas and --output"
        )
    defaults = app_defaults(app)
    grid = Grid(
        strategies=tuple(METHODS)
        if strategies == "all"
        else tuple(dict.fromkeys(_words(strategies))),
        alphas=tuple(_numbers("--alphas", alphas or str(defaults["alpha"]), float)),
        seeds=tuple(_numbers("--seeds", seeds, int)),
        values=values,
        defaults=defaults,
        simulation=simulation,
    )
    if not grid.strategies:
        raise ConfigError(f"--strategies {strategies}: expected at least one name")
    for cell in grid.cells():
        own_values: dict[str, Scalar] = {
            "strategy": cell.strategy,
            "alpha": cell.alpha,
            "seed": cell.seed,
        }
        config, _, _ = read_run_config({**defaults, **values, **own_values})
        if not config.server_evaluates:
            raise ConfigError(f'evaluate="{config.evaluate}" leaves the server nothing to compare')
    return grid


def run_comparison(folder: Path, grid: Grid, app: Path, reference: str) -> list[Outcome]:
    """Run what is missing, writing tables and pictures after every run; return the failed cells."""
    cells = list(grid.cells())
    rounds = int(grid.effective["num-server-rounds"])
    readings: list[Reading] = []
    failed: list[Outcome] = []
    titles = {name: method.title for name, method in METHODS.items()}
    with _progress() as progress:
        done = sum(is_complete(folder / "runs" / cell.name) for cell in cells)
        overall = progress.add_task(
            f"{done} of {len(cells)} runs", total=len(cells) - done, note=""
        )

        def show(flower_run: FlowerRun, target: Path, cell: Cell) -> tuple[str, str]:
            return watch(progress, flower_run, target, rounds, cell.name, parent=overall)

        for outcome in run_missing(folder, grid, app, show):
            if outcome.folder is None:
                failed.append(outcome)
                progress.console.print(f"[red]{outcome.cell.name}[/] {escape(outcome.reason)}")
                continue
            readings.append(read_run(outcome.cell, outcome.folder))
            write_csv(readings, folder / "comparison.csv")
            write_markdown(readings, titles, reference, folder / "comparison.md")
            progress.update(overall, description=f"{len(readings)} of {len(cells)} runs")
    for alpha in grid.alphas:
        of_alpha = [r for r in readings if r.cell.alpha == alpha]
        if of_alpha:
            plot_curves(of_alpha, titles, folder / f"accuracy-alpha{alpha:g}.png")
            plot_classes(of_alpha, titles, folder / f"classes-alpha{alpha:g}.png")
    return failed


def _parse_all(texts: list[str]) -> dict[str, Scalar]:
    values: dict[str, Scalar] = {}
    for text in texts:
        values |= parse_assignments(text)
    return values


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(option: str, text: str, kind: type[Number]) -> list[Number]:
    try:
        numbers = list(dict.fromkeys(kind(word) for word in _words(text)))
    except ValueError as error:
        raise ConfigError(f"{option} {text}: expected numbers with commas between") from error
    if not numbers:
        raise ConfigError(f"{option} {text}: expected at least one number")
    return numbers


def checked_values(app: Path, run_config: list[str]) -> dict[str, Scalar]:
    """Parse and check overrides; fill in where the results go, so that they can be watched.

    Raises
    ------
    ConfigError
        As `read_run_config`.
    """
    overrides = _parse_all(run_config)
    config, _, _ = read_run_config({**app_defaults(app), **overrides})
    overrides["output-dir"] = str(Path(config.output_dir or "~/fedadb-runs").expanduser())
    overrides["run-name"] = config.run_name or (
        f"{config.strategy}-{Path(config.dataset).stem}-seed{config.seed}-"
        f"{time.strftime('%Y%m%d-%H%M%S')}"
    )
    if config.run_name and (Path(str(overrides["output-dir"])) / config.run_name).exists():
        raise ConfigError(f'run-name="{config.run_name}" already exists in output-dir')
    return overrides


def watch(
    progress: Progress,
    flower_run: FlowerRun,
    folder: Path,
    rounds: int,
    name: str,
    parent: TaskID | None = None,
) -> tuple[str, str]:
    """Show a run's rounds as they end; stop the run when interrupted.

    A `parent` task counts runs; it advances by the share of rounds done.
    """
    task = progress.add_task(name, total=rounds, note="starting")
    before = 0.0 if parent is None else progress.tasks[parent].completed
    begun = False

    def look() -> None:
        nonlocal begun
        accuracies, done = read_accuracies(folder)
        if not begun and read_summary(folder):
            # The time left follows from what comes after this: not from how long Flower took to
            # start, nor from the rounds that a resumed run begins with.
            progress.advance(task, done)
            begun = True
        best = accuracy_summary(accuracies)["best5_accuracy"]
        note = f"accuracy {accuracies[-1]:.2f} %, best five {best:.2f} %" if accuracies else ""
        progress.update(task, completed=done, note=note or "starting")
        if parent is not None:
            progress.update(parent, completed=before + done / rounds)

    try:
        status = flower_run.wait(folder, look)
    except KeyboardInterrupt:
        progress.update(task, note="stopping")
        flower_run.stop()
        raise
    look()
    if parent is not None:
        progress.remove_task(task)
    return status
