"""A table as CSV, as Markdown, and as LaTeX for a paper."""

from pathlib import Path

from fedadb_app.runs.atomic import replace
from fedadb_app.runs.tables import Table, csv_text

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
    "–": "--",
    "…": r"\dots{}",
}


def write_table(table: Table, caption: str, path: Path) -> None:
    """Write a table to a CSV file, and as LaTeX beside it, with the suffix ``.tex``.

    Raises
    ------
    StorageError
        If the disk does not take them.
    """
    replace(path, csv_text([table.header, *table.rows]).encode())
    replace(path.with_suffix(".tex"), latex(table, caption).encode())


def markdown(table: Table) -> list[str]:
    """Return the lines of a table in Markdown."""
    header, *rows = (f"| {' | '.join(row)} |" for row in (table.header, *table.rows))
    return [header, "|" + "---|" * len(table.header), *rows]


def latex(table: Table, caption: str) -> str:
    r"""Return a table for a LaTeX document that has ``\usepackage{booktabs}``.

    The first column is flush left, the others are flush right. ``**…**`` around a cell, as in
    Markdown, makes it bold; whatever LaTeX would take for a command is escaped.
    """
    columns = "l" + "r" * (len(table.header) - 1)
    header, *rows = (" & ".join(map(_cell, row)) + r" \\" for row in (table.header, *table.rows))
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escaped(caption)}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        header,
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    if len(text) > 4 and text.startswith("**") and text.endswith("**"):
        return rf"\textbf{{{escaped(text[2:-2])}}}"
    return escaped(text)


def escaped(text: str) -> str:
    """Return a text that LaTeX sets as it is, on one line."""
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))
