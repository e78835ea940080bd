"""Writing the page about a folder, whichever it holds."""

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedadb_app.errors import DataError
from fedadb_app.report.comparison_page import comparison_page
from fedadb_app.report.run_page import run_page


def write_report(folder: Path, path: Path) -> None:
    """Write the page about a run's or a comparison's folder.

    Parameters
    ----------
    folder : Path
        What it is about.
    path : Path
        The HTML file.

    Raises
    ------
    DataError
        If the folder is neither, a file in it is damaged, or the page cannot be written.
    """
    if (folder / "comparison.json").exists():
        page = comparison_page(folder)
    elif (folder / "summary.json").exists():
        page = run_page(folder)
    else:
        raise DataError(
            f"{folder} is neither a run's folder (no summary.json) nor a comparison's "
            f"(no comparison.json)"
        )
    environment = Environment(
        loader=PackageLoader("fedadb_app", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    text = environment.get_template("page.html.j2").render(page=page)
    try:
        path.write_text(text, encoding="utf-8", errors="replace")  # half a surrogate pair
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}") from error
