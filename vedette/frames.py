"""Data frames of pandas or polars from pages of samples, which the portal sends as Arrow.

Neither library comes with the client: a notebook has the one that it uses.
"""

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any, Literal

from core.errors import ConfigurationError

FrameLibrary = Literal["pandas", "polars"]
_NEEDED: dict[FrameLibrary, tuple[str, ...]] = {
    "pandas": ("pandas", "pyarrow"),
    "polars": ("polars",),
}


def chosen_library(library: FrameLibrary | None) -> FrameLibrary:
    """Return the library to use: the named one, else the first that is installed.

    Raises:
        ConfigurationError: it is not installed.
    """
    for name, packages in _NEEDED.items():
        missing = [package for package in packages if find_spec(package) is None]
        if library == name and missing:
            problem = f"{' and '.join(missing)} must be installed: pip install {' '.join(packages)}"
            raise ConfigurationError([problem], source="A data frame")
        if library == name or (library is None and not missing):
            return name
    problem = "neither pandas with pyarrow nor polars is installed: pip install polars"
    raise ConfigurationError([problem], source="A data frame")


def to_frame(pages: Iterable[bytes], library: FrameLibrary) -> Any:  # noqa: ANN401 - of the library
    """Return the rows of all pages as one data frame."""
    if library == "polars":
        import polars as pl  # noqa: PLC0415 - optional

        return pl.concat([pl.read_ipc_stream(page) for page in pages])
    import pyarrow as pa  # noqa: PLC0415 - optional

    return pa.concat_tables([pa.ipc.open_stream(page).read_all() for page in pages]).to_pandas()
