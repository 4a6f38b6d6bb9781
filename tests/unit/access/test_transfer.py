"""Bytes to time a line by: bounded in size, in number, and in time."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from http.client import HTTPConnection
from itertools import pairwise

import pytest
import requests
from starlette.applications import Starlette
from starlette.routing import Route

from access.database import Database
from access.errors import HANDLERS
from access.identity.auth import Authenticator
from access.transfer import TransferEndpoints
from collector.sending.access_points import AccessPoints
from collector.sending.portal_connection import PortalConnection
from collector.sending.transfer import PortalTransfer
from core.db import SessionFactory
from plugins.base import PluginContext, PluginError, PluginUnavailableError
from plugins.speedtest.reader import SpeedtestConfig, SpeedtestPlugin
from protocol.transfer import MAX_TRANSFER_BYTES
from tenants.models import Appliance
from tests.cast import Cast, FrozenClock, make_appliance
from tests.fixtures.serving import Serving
from tests.servers import free_port
from tests.unit.access.conftest import SECRET, AgentAPI, eventually

PATH = "/agent/v1/transfer"
MIB = 2**20
OTHERS = ("dgx-02", "dgx-03", "dgx-04")


@pytest.fixture
def others(sessions: SessionFactory, cast: Cast) -> list[str]:
    """The secrets of three more appliances."""
    with sessions.begin() as session:
        for name in OTHERS:
            make_appliance(session, cast.acme, name)
    return [f"vda_acme_{name}" for name in OTHERS]


@contextmanager
def downloading(api: AgentAPI, secret: str) -> Iterator[requests.Response]:
    """Hold a download that is under way: its reader is slow."""
    with requests.get(
        f"{api.url}{PATH}",
        params={"size_bytes": MAX_TRANSFER_BYTES},
        headers={"Authorization": f"Bearer {secret}"},
        stream=True,
        timeout=60,
    ) as response:
        yield response


def test_a_download_has_the_requested_size(api: AgentAPI) -> None:
    response = api.request("GET", PATH, params={"size_bytes": 3 * MIB + 7})
    assert response.status_code == 200
    assert response.headers["Content-Length"] == str(3 * MIB + 7)
    assert len(response.content) == 3 * MIB + 7


def test_the_bytes_do_not_repeat_within_what_compression_sees(api: AgentAPI) -> None:
    content = api.request("GET", PATH, params={"size_bytes": MIB}).content
    chunks = [content[start : start + 65536] for start in range(0, MIB, 65536)]
    assert all(first != second for first, second in pairwise(chunks))
    assert len(set(chunks)) == len(chunks)


def test_a_download_of_zero_bytes_is_allowed(api: AgentAPI) -> None:
    assert api.request("GET", PATH, params={"size_bytes": 0}).content == b""


@pytest.mark.parametrize("size", ["", "many", "-1", "1.5", "\N{ARABIC-INDIC DIGIT ONE}"])
def test_a_size_that_is_no_number_is_refused_with_an_example(api: AgentAPI, size: str) -> None:
    response = api.request("GET", PATH, params={"size_bytes": size})
    assert response.status_code == 400
    assert "size_bytes=1048576" in response.json()["message"]


@pytest.mark.parametrize("size", [MAX_TRANSFER_BYTES + 1, 10**30])
def test_more_than_the_bound_is_not_sent(api: AgentAPI, size: int) -> None:
    response = api.request("GET", PATH, params={"size_bytes": size})
    assert response.status_code == 413
    assert str(MAX_TRANSFER_BYTES) in response.json()["message"]


def test_a_body_is_counted_and_forgotten(api: AgentAPI) -> None:
    response = api.request("POST", PATH, data=bytes(2 * MIB))
    assert response.status_code == 200
    assert response.json() == {"received_bytes": 2 * MIB}


def test_a_body_without_an_announced_length_is_counted_too(api: AgentAPI) -> None:
    response = api.request("POST", PATH, data=iter([b"ab", b"cde"]))
    assert response.json() == {"received_bytes": 5}


def test_a_body_that_announces_more_than_the_bound_is_refused_unread(api: AgentAPI) -> None:
    response = api.request(
        "POST", PATH, data=b"", headers={"Content-Length": str(MAX_TRANSFER_BYTES + 1)}
    )
    assert response.status_code == 413


def test_an_appliance_has_one_transfer_at_a_time(api: AgentAPI) -> None:
    with downloading(api, SECRET):
        refused = api.request("GET", PATH, params={"size_bytes": 1})
    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) == 60


def test_a_few_transfers_run_concurrently_while_samples_are_ingested(
    api: AgentAPI, others: list[str]
) -> None:
    with (
        downloading(api, others[0]),
        downloading(api, others[1]),
        downloading(api, others[2]),
    ):
        assert api.request("POST", PATH, data=b"1").status_code == 429
        assert api.write(b"cpu usage_percent=1").status_code == 204


def test_a_slot_is_free_again_when_its_reader_hangs_up(api: AgentAPI) -> None:
    with downloading(api, SECRET):
        pass
    assert eventually(lambda: api.request("GET", PATH, params={"size_bytes": 1}).status_code == 200)


@pytest.fixture
def hasty_door(sessions: SessionFactory, clock: FrozenClock, dgx: Appliance) -> Iterator[str]:
    """The address of a api at which a transfer may take a tenth of a second."""
    del dgx  # its agent is the one that knocks
    endpoints = TransferEndpoints(
        Authenticator(Database(sessions), clock=clock), time_limit_seconds=0.1
    )
    routes = [
        Route(PATH, endpoints.download, methods=["GET"]),
        Route(PATH, endpoints.upload, methods=["POST"]),
    ]
    with Serving(Starlette(routes=routes, exception_handlers=HANDLERS)) as url:
        yield url


def test_a_body_that_takes_too_long_is_broken_off(hasty_door: str) -> None:
    address = hasty_door.removeprefix("http://")
    with closing(HTTPConnection(address, timeout=60)) as slow:
        slow.putrequest("POST", PATH)
        slow.putheader("Authorization", f"Bearer {SECRET}")
        slow.putheader("Content-Length", "1000")
        slow.endheaders(b"only some")
        with slow.getresponse() as answer:
            assert answer.status == 400
            assert b"too_slow" in answer.read()


def test_a_reader_that_takes_too_long_is_cut_off(hasty_door: str) -> None:
    with requests.get(
        f"{hasty_door}{PATH}",
        params={"size_bytes": MAX_TRANSFER_BYTES},
        headers={"Authorization": f"Bearer {SECRET}"},
        stream=True,
        timeout=60,
    ) as response:
        threading.Event().wait(0.3)
        with pytest.raises(requests.RequestException):
            for _ in response.iter_content(MIB):
                pass


def transfer_to(url: str, token: str = SECRET) -> PortalTransfer:
    connection = PortalConnection(AccessPoints([url]), agent_token=token, timeout_seconds=60)
    return PortalTransfer(connection)


def test_the_agents_speed_test_runs_through_the_api(api: AgentAPI) -> None:
    config = SpeedtestConfig(download_bytes=MIB, upload_bytes=MIB, first_test_within_seconds=0)
    plugin = SpeedtestPlugin(config, PluginContext(transfer=transfer_to(api.url)))
    (point,) = plugin.gather(datetime(2026, 3, 1, tzinfo=UTC))
    assert point.fields["transferred_bytes"] == 1 + 2 * (256 * 1024 + MIB)
    assert float(point.fields["download_bytes_per_second"]) > 0
    assert float(point.fields["upload_bytes_per_second"]) > 0


def test_the_agent_reports_why_a_transfer_was_rejected(api: AgentAPI) -> None:
    line = transfer_to(api.url, "vda_wrong")
    with pytest.raises(PluginError, match="answered 401"):
        line.download(1)
    with pytest.raises(PluginError, match="answered 401"):
        line.upload(1)
    line.close()


def test_the_agent_reports_that_no_server_responds() -> None:
    line = transfer_to(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(PluginError, match="does not answer: Connection refused"):
        line.download(1)
    with pytest.raises(PluginError, match="does not answer: Connection refused"):
        line.upload(1)


def test_a_portal_without_a_speed_test_is_nothing_to_read(api: AgentAPI) -> None:
    line = transfer_to(f"{api.url}/elsewhere")
    with pytest.raises(PluginUnavailableError, match="offers no speed test"):
        line.download(1)
    line.close()
