"""`vedette query` against a real portal."""

from datetime import timedelta
from unittest import mock

import pytest

from core.clock import to_ns
from core.db import SessionFactory
from core.errors import ConfigurationError
from tenants.users.tokens import create_api_token
from tests.cast import Cast, FrozenClock, scope_of
from tests.fixtures.in_process import run_vedette
from tests.unit.cli.conftest import EnvironOf
from timeseries.points import Point
from timeseries.store import Store, write
from vedette.client import Client
from vedette.frames import FrameLibrary, chosen_library


def test_all_pages_are_printed_as_one_csv(
    *, environ_of: EnvironOf, cast: Cast, store: Store, clock: FrozenClock
) -> None:
    at_ns = to_ns(clock.now - timedelta(minutes=1))
    points = [Point("gpu", {"gpu": f"{n:02}"}, {"power_watts": float(n)}, at_ns) for n in range(60)]
    write(store, points, identity={"tenant": cast.acme.id, "appliance": "a"})
    environ = environ_of(cast.bob)

    printed = run_vedette(
        "query", "gpu", "power_watts", "--by", "gpu", "--since", "-5m", environ=environ
    )
    filtered = run_vedette(
        "query", "gpu", "power_watts", "--step", "1h", "--filter", "gpu=07", environ=environ
    )
    wrong = run_vedette("query", "gpu", "power", environ=environ)

    assert printed.stdout.split() == [
        "time,gpu,power_watts",
        *(f"2026-03-02T11:55:00Z,{n:02},{float(n)}" for n in range(60)),
    ]
    assert filtered.stdout.split() == ["time,power_watts", "2026-03-02T11:00:00Z,7.0"]
    assert wrong.returncode == 1
    assert "Did you mean 'power_watts'?" in wrong.stderr


def test_a_notebook_gets_all_pages_as_a_data_frame(
    *, url: str, cast: Cast, sessions: SessionFactory, store: Store, clock: FrozenClock
) -> None:
    at_ns = to_ns(clock.now - timedelta(minutes=1))
    points = [Point("gpu", {"gpu": f"{n:02}"}, {"power_watts": float(n)}, at_ns) for n in range(60)]
    write(store, points, identity={"tenant": cast.acme.id, "appliance": "a"})
    with sessions.begin() as session:
        secret = create_api_token(session, scope_of(cast.bob), name="test", now=clock.now)[1]
    # DuckDB would load pandas with each query, if it were installed here.
    library: FrameLibrary = "polars"
    with Client(url, token=secret) as client:
        watts = client.query("gpu", ["power_watts"], group_by=["gpu"], since="-5m", library=library)
        chosen = client.query(
            "gpu", ["power_watts"], step="1h", filters={"gpu": ["07", "09"]}, library=library
        )
    assert type(watts).__module__.startswith(library)
    assert list(watts.columns) == ["time", "gpu", "power_watts"]
    assert watts["power_watts"].to_list() == [float(n) for n in range(60)]
    assert watts["time"][0].isoformat() == "2026-03-02T11:55:00+00:00"
    assert chosen["power_watts"].to_list() == [8.0]


def test_without_a_library_for_data_frames_the_client_says_what_to_install() -> None:
    with mock.patch("vedette.frames.find_spec", return_value=None):
        with pytest.raises(ConfigurationError, match="pip install pandas pyarrow"):
            chosen_library("pandas")
        with pytest.raises(ConfigurationError, match="pip install polars"):
            chosen_library(None)
