"""The portal's list of access points: what is accepted of it, and what outlives a restart."""

from pathlib import Path

import msgspec
import pytest

from collector.sending.access_points import AccessPoints
from collector.sending.listed import FILE_NAME, AccessPointFile
from collector.sending.portal_connection import PortalConnection
from protocol.access_points import MAX_ACCESS_POINTS
from protocol.agent_update import UpdateOrder
from protocol.heartbeat import Heartbeat
from tests.fixtures.recording_portal import AGENT_TOKEN, RecordingPortal
from tests.unit.collector.listed_points import accept, listed

BEAT = Heartbeat(agent_version="0.1.0", sent_at_ns=1)
OWN = "https://portal.example"


def stored(folder: Path, *urls: str) -> AccessPoints:
    return AccessPoints(urls or [OWN], key="appliance-1", file=AccessPointFile(folder))


def test_a_list_arrives_with_a_heartbeat_and_is_used_at_once(portal: RecordingPortal) -> None:
    with RecordingPortal() as other:
        portal.recording.access_points = listed({other.url: 100}, revision="7")
        points = AccessPoints([portal.url])
        link = PortalConnection(points, agent_token=AGENT_TOKEN)
        link.heartbeat(BEAT)
        assert points.urls == [portal.url, other.url]
        assert points.revision == "7"
        assert points.relisted.is_set()
        points.record_probes({portal.url: 0.001, other.url: 0.5})
        assert points.current == other.url, "the configured address is the last resort"
        link.heartbeat(BEAT)
        assert len(other.recording.heartbeats) == 1
        link.close()


def test_a_portal_without_lists_changes_nothing(portal: RecordingPortal) -> None:
    points = AccessPoints([portal.url])
    link = PortalConnection(points, agent_token=AGENT_TOKEN)
    link.heartbeat(BEAT)
    assert (points.urls, points.revision) == ([portal.url], "")
    link.close()


def test_an_empty_list_leaves_the_configured_addresses() -> None:
    points = AccessPoints([OWN])
    accept(points, {"https://a.example": 100})
    accept(points, {})
    assert points.urls == [OWN]


@pytest.mark.parametrize(
    "url",
    [
        "http://a.example",
        "ftp://a.example",
        "https://",
        "https://user:secret@a.example",
        "https://a.example/?q=1",
        "https://a.example/#x",
        "https://a.example:99999",
        "https://a..example",
        "https://a.example\r\nX-Header: 1",
        "https://ä.example",
        "https://" + "a" * 300,
    ],
)
def test_a_list_with_a_bad_address_is_refused_and_the_old_one_stays(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    points = AccessPoints([OWN])
    accept(points, {"https://a.example": 100})
    data = {"revision": "8", "points": [{"url": "https://b.example"}, {"url": url}]}
    for _ in range(3):
        points.accept(msgspec.json.encode(data))
    assert points.urls == [OWN, "https://a.example"]
    assert caplog.text.count("list of access points is not used") == 1


@pytest.mark.parametrize(
    "data",
    [
        {
            "revision": "8",
            "points": [{"url": f"https://p{n}"} for n in range(MAX_ACCESS_POINTS + 1)],
        },
        {"revision": "8", "points": [{"url": "https://a"}, {"url": "https://a/"}]},
        {"revision": "8", "points": [{"url": "https://a", "weight": -1}]},
        {"revision": "", "points": []},
        {"points": []},
        ["https://a"],
    ],
)
def test_a_list_of_another_shape_is_refused(data: object) -> None:
    points = AccessPoints([OWN])
    points.accept(msgspec.json.encode(data))
    assert (points.urls, points.revision) == ([OWN], "")


def test_http_is_accepted_where_the_configured_address_has_it() -> None:
    points = AccessPoints(["http://portal"])
    accept(points, {"http://a": 100, "https://b/": 100})
    assert points.urls == ["http://portal", "http://a", "https://b"]


def test_a_bad_list_does_not_cost_the_rest_of_the_reply(portal: RecordingPortal) -> None:
    order = UpdateOrder(update_id="u1", version="2", requirements_sha256="0" * 64)
    portal.recording.update = order
    portal.recording.access_points = listed({"http://": 100})
    points = AccessPoints([portal.url])
    link = PortalConnection(points, agent_token=AGENT_TOKEN)
    assert link.heartbeat(BEAT).update == order
    assert points.urls == [portal.url]
    link.close()


def test_list_and_choice_outlive_a_restart(tmp_path: Path) -> None:
    points = stored(tmp_path)
    accept(points, {"https://a": 100, "https://b": 100})
    points.record_probes({OWN: 0.01, "https://a": 0.5, "https://b": 0.1})
    points.record_failure("https://b", "Connection refused")
    points.save()
    restarted = stored(tmp_path)
    assert restarted.current == "https://a"
    assert restarted.urls == points.urls
    assert restarted.revision == points.revision
    assert (restarted.state.moves, restarted.state.failovers) == (1, 1)
    assert restarted.state.reason == "https://b failed: Connection refused"


def test_a_first_choice_without_a_move_is_stored_too(tmp_path: Path) -> None:
    points = stored(tmp_path, OWN, "https://far.example")
    points.record_probes({OWN: 0.01, "https://far.example": 0.5})
    points.save()
    assert stored(tmp_path, OWN, "https://far.example").state.current == OWN


def test_a_stored_list_of_another_portal_is_not_used(tmp_path: Path) -> None:
    points = stored(tmp_path)
    accept(points, {"https://a": 100})
    points.save()
    assert stored(tmp_path, "https://other.example").urls == ["https://other.example"]


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        (
            b'{"configured":["https://portal.example"],"listed":{"revision":"1","points":'
            b'[{"url":"http://a"}]},"current":"http://a"}'
        ),
    ],
)
def test_a_damaged_or_forged_file_is_not_used(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    points = stored(tmp_path)
    assert (points.urls, points.current, points.revision) == ([OWN], OWN, "")


def test_a_stored_address_that_is_in_neither_list_is_not_used(tmp_path: Path) -> None:
    content = {"configured": [OWN], "current": "https://evil.example"}
    (tmp_path / FILE_NAME).write_bytes(msgspec.json.encode(content))
    assert stored(tmp_path).urls == [OWN]
