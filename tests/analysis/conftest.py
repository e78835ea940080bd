"""What the tests of pictures share."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image


class Drawn(list[Figure]):
    """The figures that were saved, in order."""

    def texts(self) -> list[str]:
        """All that is written in the last one."""
        return [t.get_text() for t in self[-1].findobj(Text) if t.get_visible() and t.get_text()]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """Look into the figures that are saved; each file must be a picture that can be read."""
    figures = Drawn()
    save = Figure.savefig

    def saved(figure: Figure, path: Path, **options: object) -> None:
        save(figure, path, **options)
        with Image.open(path) as image:
            image.load()
            assert len(image.getcolors(2**24)) > 10
        figures.append(figure)

    monkeypatch.setattr(Figure, "savefig", saved)
    return figures
