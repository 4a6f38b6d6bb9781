"""A portal on a free port, for commands that call its REST API."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.server import Backend, create_asgi_app
from core.db import SessionFactory
from core.settings import ServerSettings
from tests.cast import FrozenClock
from tests.fixtures.serving import Serving
from timeseries.store import Store


@pytest.fixture
def settings(tmp_path: Path) -> ServerSettings:
    return ServerSettings(data_dir=tmp_path / "data")


@pytest.fixture
def url(
    settings: ServerSettings, sessions: SessionFactory, store: Store, clock: FrozenClock
) -> Iterator[str]:
    app = create_asgi_app(Backend(settings, sessions, store), clock=clock)
    with Serving(app) as url:
        yield url
