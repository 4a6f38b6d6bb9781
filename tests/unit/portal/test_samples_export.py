"""Export of samples by the API, of the own tenant only."""

import csv
import io
from datetime import UTC, datetime, timedelta
from itertools import count
from urllib.parse import urlencode

import pytest
from flask import Flask
from pyarrow import parquet

from core.clock import to_ns
from portal.api import metrics as samples
from portal.context import set_principal
from portal.downloads import DISCONNECTED, MAX_PER_TENANT, stream_file
from tenants.principals import Via, principal_of
from tests.cast import Cast, FrozenClock
from tests.unit.portal.conftest import Browser
from timeseries.migration.export import ExportFormat
from timeseries.points import Point
from timeseries.store import Store, StoreUnavailableError, write

PATH = "/api/v1/samples/export"


@pytest.fixture
def _history(store: Store, cast: Cast, clock: FrozenClock) -> None:
    """Ten minutes of acme and of globex, a sample a minute."""
    for tenant, watts in ((cast.acme, 300.0), (cast.globex, 400.0)):
        points = [
            Point(
                "gpu",
                {"gpu": "0"},
                {"power_watts": watts},
                to_ns(clock.now - timedelta(minutes=minute)),
            )
            for minute in range(1, 11)
        ]
        write(store, points, identity={"tenant": tenant.id, "appliance": f"of {tenant.slug}"})


def rows(browser: Browser, **query: str) -> list[dict[str, str]]:
    answer = browser.get(f"{PATH}?{urlencode({'measurement': 'gpu', **query})}")
    assert answer.status_code == 200, answer.text
    assert answer.content_type == "text/csv; charset=utf-8"
    return list(csv.DictReader(io.StringIO(answer.text, newline="")))


@pytest.mark.usefixtures("_history")
def test_the_default_export_is_the_last_hour_of_the_own_tenant(bob: Browser, cast: Cast) -> None:
    exported = rows(bob)

    assert len(exported) == 10
    assert {row["tenant"] for row in exported} == {cast.acme.id}
    assert {row["power_watts"] for row in exported} == {"300"}


@pytest.mark.usefixtures("_history")
def test_another_tenants_samples_are_not_exported(charlie: Browser, cast: Cast) -> None:
    assert {row["tenant"] for row in rows(charlie)} == {cast.globex.id}


@pytest.mark.usefixtures("_history")
def test_operators_export_samples_of_all_tenants(olivia: Browser, cast: Cast) -> None:
    assert {row["tenant"] for row in rows(olivia)} == {cast.acme.id, cast.globex.id}


@pytest.mark.usefixtures("_history")
def test_an_export_honors_its_time_range(bob: Browser, clock: FrozenClock) -> None:
    since, until = clock.now - timedelta(minutes=5), clock.now - timedelta(minutes=2)

    exported = rows(bob, since=since.isoformat(), until=until.isoformat())

    assert len(exported) == 3
    assert min(row["time"] for row in exported).startswith(f"{since:%Y-%m-%dT%H:%M:%S}.000")


@pytest.mark.usefixtures("_history")
def test_parquet_is_sent_as_an_attachment(bob: Browser) -> None:
    answer = bob.get(f"{PATH}?measurement=gpu&format=parquet")

    assert answer.content_type == "application/vnd.apache.parquet"
    assert answer.headers["Content-Disposition"].startswith('attachment; filename="gpu_2026')
    assert parquet.read_table(io.BytesIO(answer.data)).num_rows == 10


@pytest.mark.parametrize(
    ("measurement", "named"),
    [
        ("gpu", "gpu"),
        ("GPU power/slot 1", "GPU_power_slot_1"),
        ('../..//"x"\r\n', "x"),
        ("温度", "samples"),
        ("...", "samples"),
        ("m" * 200, "m" * 80),
    ],
)
def test_the_file_name_has_measurement_and_time_range(measurement: str, named: str) -> None:
    since, until = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, 1, 2, 3, tzinfo=UTC)

    name = samples.file_name(measurement, since, until, ExportFormat.PARQUET)

    assert name == f"{named}_20260301T000000Z_20260302T010203Z.parquet"


@pytest.mark.usefixtures("_history")
@pytest.mark.parametrize("at", ["0001-01-01T05:00:00Z", "1677-01-01T00:00:00Z", "9999-12-31"])
def test_an_empty_range_exports_only_the_header(bob: Browser, at: str) -> None:
    assert rows(bob, until=at) == []

    answer = bob.get(f"{PATH}?{urlencode({'measurement': 'gpu', 'until': at})}")
    assert answer.text == '"time","tenant","appliance","gpu","power_watts"\n'


@pytest.mark.usefixtures("_history")
def test_an_empty_parquet_file_has_its_columns(bob: Browser) -> None:
    answer = bob.get(f"{PATH}?measurement=gpu&format=parquet&until=2020-01-01T00:00Z")

    table = parquet.read_table(io.BytesIO(answer.data))
    assert (table.num_rows, table.column_names) == (
        0,
        ["time", "tenant", "appliance", "gpu", "power_watts"],
    )


@pytest.mark.usefixtures("cast")
def test_a_measurement_of_another_tenant_is_404(
    bob: Browser, store: Store, cast: Cast, clock: FrozenClock
) -> None:
    point = Point("secret", {}, {"x": 1.0}, to_ns(clock.now) - 1)
    write(store, [point], identity={"tenant": cast.globex.id, "appliance": "x"})

    foreign = bob.get(f"{PATH}?measurement=secret")
    missing = bob.get(f"{PATH}?measurement=nothing")

    assert foreign.status_code == missing.status_code == 404
    assert foreign.text == missing.text.replace("nothing", "secret")


def test_an_invalid_query_reports_its_field(bob: Browser) -> None:
    for query, field in (
        ("", "measurement"),
        ("measurement=", "measurement"),
        ("measurement=gpu&format=xlsx", "format"),
        ("measurement=gpu&untill=2026-01-01", "untill"),
        ("measurement=gpu&until=0001-01-01T00:30:00Z", "since"),
        ("measurement=gpu&since=9999-12-31T23:00:00-05:00", "since"),
        ("measurement=gpu&since=yesterday", "since"),
        ("measurement=gpu&since=2026-01-02&until=2026-01-01", "since"),
        ("measurement=gpu&since=2025-01-01T00:00Z&until=2026-01-01T00:00Z", "until"),
    ):
        answer = bob.get(f"{PATH}?{query}")

        assert answer.status_code == 422
        assert answer.json is not None
        assert field in str(answer.json["errors"])


@pytest.mark.usefixtures("_history")
def test_too_many_rows_are_refused_before_streaming(
    bob: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MAX_ROWS", 9)

    answer = bob.get(f"{PATH}?measurement=gpu")

    assert answer.status_code == 422
    assert "10 points" in answer.text


def test_both_formats_are_documented(nobody: Browser) -> None:
    described = nobody.get("/api/v1/openapi.json").json
    assert described is not None

    content = described["paths"][PATH]["get"]["responses"]["200"]["content"]

    assert set(content) == {"text/csv", "application/vnd.apache.parquet"}


@pytest.mark.usefixtures("_history")
def test_a_tenant_has_few_downloads_at_once_and_others_still_get_theirs(
    bob: Browser, charlie: Browser
) -> None:
    path = f"{PATH}?measurement=gpu"
    unread = [bob.client.get(path) for _ in range(MAX_PER_TENANT)]
    refused = bob.get(path)
    assert (refused.status_code, refused.get_json()["code"]) == (429, "overloaded")
    assert int(refused.headers["Retry-After"]) > 0
    assert charlie.get(path).status_code == 200

    for response in unread:
        response.close()
    assert bob.get(path).status_code == 200


def test_an_export_ends_when_its_client_has_gone(app: Flask, cast: Cast) -> None:
    asgi_scope: dict[str, object] = {}
    with app.test_request_context(environ_base={"asgi.scope": asgi_scope}):
        set_principal(principal_of(cast.bob, via=Via.PASSWORD))
        response = stream_file(map(str, count()), media_type="text/csv", file_name="x.csv")
        pieces = response.response
        assert next(iter(pieces)) == "0"
        asgi_scope[DISCONNECTED] = True
        assert list(pieces) == []
        response.close()


def test_a_download_that_fails_at_its_beginning_has_no_response(app: Flask, cast: Cast) -> None:
    def fail(_: int) -> str:
        raise StoreUnavailableError("A file of samples is missing.")

    with app.test_request_context():
        set_principal(principal_of(cast.bob, via=Via.PASSWORD))
        for _ in range(MAX_PER_TENANT + 1):
            with pytest.raises(StoreUnavailableError):
                stream_file(map(fail, [0]), media_type="text/csv")
