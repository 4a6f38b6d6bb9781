"""A portal on a free port, for commands that call its REST API."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from werkzeug.serving import make_server

from core.db import SessionFactory
from core.settings import ServerSettings
from portal.app import create_portal
from tests.cast import FrozenClock
from timeseries.store import Store


@pytest.fixture
def settings(tmp_path: Path) -> ServerSettings:
    return ServerSettings(data_dir=tmp_path / "data")


@pytest.fixture
def url(
    settings: ServerSettings, sessions: SessionFactory, store: Store, clock: FrozenClock
) -> Iterator[str]:
    app = create_portal(settings, sessions=sessions, store=store, clock=clock)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()
