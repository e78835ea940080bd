"""A user's own net or data set: a function that the run configuration names, found by import.

The name has the form ``package.module:function``. The module lies in the app's bundle, or is
installed on the server and on every node. Nothing is imported when a configuration is checked, only
where the function is used: a node's study file has had its say before (`fedadb_app.study`).
"""

import importlib
import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from fedadb_app.errors import ConfigError

FORM = "a function of your own, as package.module:function"

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_LIBRARIES = ("torchvision", "timm")  # whose names look the same, and are not imported


def is_own(name: str) -> bool:
    """Whether a value of ``model`` or ``dataset`` names a function of a user's own.

    What looks like a library's name mistyped does not: its sentence names the library's net.
    """
    module = name.partition(":")[0]
    return _NAME.fullmatch(name) is not None and not get_close_matches(
        module, _LIBRARIES, cutoff=0.8
    )


def own_function(key: str, name: str) -> Callable[..., Any]:
    """Import the function that a key of the run configuration names.

    Raises
    ------
    ConfigError
        If this machine has no such module or function, or importing it fails.
    """
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        lacking = error.name if isinstance(error, ModuleNotFoundError) else None
        if lacking and f"{module_name}.".startswith(f"{lacking}."):
            raise ConfigError(
                f'{key}="{name}": this machine has no module "{lacking}"; it has to lie in the '
                f"app's bundle (fab-include in pyproject.toml) or be installed on the server and "
                f"on every node"
            ) from error
        raise ConfigError(f'{key}="{name}" cannot be imported: {in_one_line(error)}') from error
    function = getattr(module, function_name, None)
    if not callable(function):
        kind = "no function" if function is None else f"a {type(function).__name__}, no function,"
        raise ConfigError(f'{key}="{name}": the module has {kind} of this name')
    found: Callable[..., Any] = function
    return found


def in_one_line(error: Exception) -> str:
    """Return what went wrong in somebody else's code: kind and text, at most 300 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
