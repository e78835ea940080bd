"""One file per paper, both halves of the method side by side; `registry` lists them."""

from strategies.registry import METHODS, read_run_config

__all__ = ["METHODS", "read_run_config"]
