"""A picture of the page: SVG for the page's own text and colours, with alternative text."""

import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

# Colours that stand for the page's own (page.html.j2), which differ between light and dark.
INK, MUTED, GRID, OTHERS = "#010203", "#010204", "#010205", "#010206"
SERIES = ("#010207", "#010208", "#010209", "#01020a")
_PAGE_COLOURS = {
    INK: "currentColor",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    OTHERS: "var(--others)",
    **{colour: f"var(--s{number})" for number, colour in enumerate(SERIES, start=1)},
}
_STYLE: Mapping[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "figure.facecolor": "none",
    "legend.frameon": False,
    "lines.linewidth": 1.6,
}
NARROW, WIDE = (4.8, 2.7), (9.8, 3.0)


def ink_on(red: float, green: float, blue: float) -> str:
    """Return what stands out more on a cell of a picture, black or white.

    The cells keep their colours on a dark page, and so must what stands on them. The contrast
    (WCAG 2.2) is at least the square root of 21, 4.58, whatever the colour.

    Parameters
    ----------
    red, green, blue : float
        Of the cell, each 0 to 1.
    """
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "black" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "white"


@dataclass(frozen=True)
class Picture:
    """One figure of the page, drawn when the page is written.

    Attributes
    ----------
    draw : Callable
        Draws it on an empty figure.
    size : tuple[float, float]
        Width and height, inches.
    alternative : str
        What it shows, in words.
    caption : str
        Its heading.
    wide : bool
        Whether it has the page's whole width.
    """

    draw: Callable[[Figure], None]
    size: tuple[float, float]
    alternative: str
    caption: str
    wide: bool = False

    @property
    def svg(self) -> Markup:
        """The picture as an element of an HTML page."""
        return _drawn(self.draw, self.size, self.alternative)


def _drawn(draw: Callable[[Figure], None], size: tuple[float, float], alt: str) -> Markup:
    """Draw a figure as an SVG element for an HTML page.

    Its `alt` text also salts the identifiers inside it, so that those of two pictures differ.
    """
    text = io.StringIO()
    with mpl.rc_context({**_STYLE, "svg.hashsalt": alt}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        with warnings.catch_warnings():
            # the page's fonts draw the text, so it does not matter what matplotlib's own lack
            warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
            figure.savefig(text, format="svg")
    root = ET.fromstring(text.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)
    markup = ET.tostring(root, encoding="unicode")
    references = set(re.findall(r'(?:url\(#|href="#)([^")]+)', markup))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]  # HTML knows SVG without its name space
        attributes = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
        if attributes.get("id") not in references:
            attributes.pop("id", None)
        element.attrib.clear()
        element.attrib.update(attributes)
    for unwanted in ("width", "height", "version"):
        root.attrib.pop(unwanted, None)
    root.attrib |= {"role": "img", "aria-label": alt}
    markup = ET.tostring(root, encoding="unicode")
    markup = re.sub("font-family: [^;]+; ", "", markup)  # the page's
    for colour, variable in _PAGE_COLOURS.items():
        markup = markup.replace(colour, variable)
    return Markup(markup)
