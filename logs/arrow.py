"""Arrow's kernels and Parquet, loaded when a search or a file first needs them.

A server that nobody searches in saves their memory and the time to load them.
"""

from importlib import import_module
from typing import Any

_MODULES = {"pc": "pyarrow.compute", "pq": "pyarrow.parquet"}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module
    if name not in _MODULES:
        raise AttributeError(name)
    module = globals()[name] = import_module(_MODULES[name])
    return module
