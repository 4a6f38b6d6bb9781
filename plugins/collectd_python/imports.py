"""Where modules are found, and how they leave Python again.

A package keeps the module `collectd` that it imported. So all of its modules go when the plugin is
closed, and those beside it: with new settings they are imported anew, and register themselves.
"""

import contextlib
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from types import ModuleType


@contextlib.contextmanager
def importable(names: Collection[str], *, folders: Collection[Path]) -> Iterator[None]:
    """Look for modules in folders first, and forget those of them that the block imported.

    Args:
        names: modules that are forgotten with all that is in them, wherever they were found.
    """
    path_before, modules_before = list(sys.path), set(sys.modules)
    sys.path[:0] = [str(folder) for folder in folders]
    try:
        yield
    finally:
        sys.path[:] = path_before
        for name in sys.modules.keys() - modules_before:
            if name.partition(".")[0] in names or _lies_in(sys.modules[name], folders):
                del sys.modules[name]


def _lies_in(module: ModuleType, folders: Collection[Path]) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and any(Path(file).is_relative_to(folder) for folder in folders)
