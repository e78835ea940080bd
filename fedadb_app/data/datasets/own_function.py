"""A data set of a user's own code, by ``package.module:function``; docs/add-a-data-set.md."""

from pathlib import Path

from fedadb_app.data.dataset import Dataset
from fedadb_app.data.prepared import Source
from fedadb_app.errors import DataError, FedADBError
from fedadb_app.own_code import FORM, in_one_line, is_own, own_function
from fedadb_app.registry import Family


def _locate(name: str, home: Path, download: bool) -> Source:
    load = own_function("dataset", name)
    try:
        source = load(name, home, download)
    except FedADBError:
        raise
    except Exception as error:
        raise DataError(f'dataset="{name}" failed: {in_one_line(error)}') from error
    if not isinstance(source, Source):
        raise DataError(
            f'dataset="{name}" gave a {type(source).__name__}: expected a '
            f"fedadb_app.data.prepared.Source"
        )
    return source


def _find(name: str) -> Dataset | None:
    return Dataset(title=f"{name} (own)", paper="", locate=_locate) if is_own(name) else None


FAMILY = Family(FORM, _find)
