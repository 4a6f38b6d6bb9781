"""Modules written for collectd, from their source, loaded by the plugin on a hand-moved clock.

Import the fixture: `from tests.unit.plugins.loaded_modules import load`.
"""

import sys
import textwrap
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from plugins.base import PluginContext
from plugins.collectd_python.reader import CollectdPythonConfig, CollectdPythonPlugin
from tests.cast import FrozenClock
from timeseries.points import Point

__all__ = ["Load", "Loaded", "Seen", "attempted", "load", "seen"]

Seen = list[Any]


class Loaded:
    """A plugin with modules, read by a clock that only the test moves."""

    def __init__(self, folder: Path, clock: FrozenClock) -> None:
        self.folder = folder
        self.clock = clock
        self.plugin: CollectdPythonPlugin | None = None

    def write(self, name: str, source: str) -> None:
        """Write a module that can import collectd and keeps things in `seen`."""
        text = f"import collectd\nseen = []\n{textwrap.dedent(source)}"
        (self.folder / f"{name}.py").write_text(text, encoding="utf-8")

    def gather(self, *, after_seconds: float = 0.0) -> list[Point]:
        """Let time pass and read the plugin."""
        assert self.plugin is not None
        self.clock.now += timedelta(seconds=after_seconds)
        return list(self.plugin.gather(self.clock.now))

    def close(self) -> None:
        """Close the plugin, once."""
        plugin, self.plugin = self.plugin, None
        if plugin is not None:
            plugin.close()


Load = Callable[..., Loaded]


@pytest.fixture
def load(tmp_path: Path, clock: FrozenClock) -> Iterator[Load]:
    """Return a function that loads one module from its source, or several by their names."""
    loaded = Loaded(tmp_path, clock)

    def load_modules(source: str = "", *other_sources: str, **settings: object) -> Loaded:
        for number, text in enumerate([source, *other_sources]):
            loaded.write(f"spam{number or ''}", text)
        names = [f"spam{number or ''}" for number in range(1 + len(other_sources))]
        settings.setdefault("modules", {name: {} for name in names})
        config = CollectdPythonConfig(module_paths=(tmp_path,), **settings)  # type: ignore[arg-type]
        loaded.plugin = CollectdPythonPlugin(config, PluginContext(), clock=clock)
        return loaded

    yield load_modules
    loaded.close()


def seen(name: str = "spam") -> Seen:
    """Return what a loaded module has kept."""
    return list(sys.modules[name].seen)


def attempted(body: str) -> str:
    """Return the source of a module that keeps what an expression gives, or raises, in `seen`."""
    return f"""
    def attempt():
        try:
            seen.append({body})
        except Exception as error:
            seen.append((type(error).__name__, str(error)))
    collectd.register_init(attempt)
    """
