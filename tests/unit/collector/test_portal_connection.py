"""The portal connection over real HTTP: failover, credentials and error messages."""

from collections.abc import Iterator

import pytest

from collector.errors import PortalRefusedError, PortalUnreachableError
from collector.sending.access_points import AccessPoints
from collector.sending.portal_connection import PortalConnection
from collector.sending.probing import AccessPointProber
from protocol.attempts import DesiredState, LogChunk
from protocol.heartbeat import Heartbeat
from protocol.inventory import Inventory
from tests.fixtures.recording_portal import AGENT_TOKEN, RecordingPortal, Refusal

BEAT = Heartbeat(agent_version="0.1.0", sent_at_ns=1, inventory=Inventory(hostname="dgx-1"))
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def link(portal: RecordingPortal) -> Iterator[PortalConnection]:
    link = PortalConnection(AccessPoints([portal.url]), agent_token=AGENT_TOKEN)
    yield link
    link.close()


def test_a_heartbeat_arrives(link: PortalConnection, portal: RecordingPortal) -> None:
    link.heartbeat(BEAT)
    assert portal.recording.heartbeats == [BEAT]


def test_the_desired_state_is_read(link: PortalConnection, portal: RecordingPortal) -> None:
    portal.desire(DesiredState(generation=4, stopping=["a"]))
    assert link.desired(-1, wait_seconds=0) == DesiredState(generation=4, stopping=["a"])


def test_no_content_means_unchanged(link: PortalConnection, portal: RecordingPortal) -> None:
    portal.refuse_always(Refusal(204))
    assert link.desired(4, wait_seconds=0) is None


def test_the_log_reply_has_the_next_offset(link: PortalConnection, portal: RecordingPortal) -> None:
    portal.recording.logs["a"] = b"12345"
    chunks = [
        LogChunk(attempt_id="a", offset=0, data=b"123"),
        LogChunk(attempt_id="b", offset=0, data=b"12"),
    ]
    assert [ack.next_offset for ack in link.ship_logs(chunks)] == [5, 2]
    assert portal.recording.logs == {"a": b"12345", "b": b"12"}


def test_the_next_address_is_used_and_stays_current(portal: RecordingPortal) -> None:
    addresses = AccessPoints([NOWHERE, portal.url + "/"])
    link = PortalConnection(addresses, agent_token=AGENT_TOKEN)
    link.heartbeat(BEAT)
    assert addresses.current == portal.url
    link.close()


def test_no_address_answering_is_one_error() -> None:
    link = PortalConnection(AccessPoints([NOWHERE, NOWHERE]), agent_token=AGENT_TOKEN)
    with pytest.raises(PortalUnreachableError, match="does not answer"):
        link.heartbeat(BEAT)
    link.close()


def test_a_refusal_carries_the_portals_own_sentence(
    link: PortalConnection, portal: RecordingPortal
) -> None:
    portal.refuse_always(Refusal(401, "This agent was revoked."))
    with pytest.raises(PortalRefusedError, match=r"This agent was revoked\.") as caught:
        link.heartbeat(BEAT)
    assert caught.value.http_status == 401


def test_an_overloaded_portal_sets_the_retry_time(
    link: PortalConnection, portal: RecordingPortal
) -> None:
    portal.refuse_always(Refusal(503, "starting", {"Retry-After": "12"}))
    with pytest.raises(PortalUnreachableError) as caught:
        link.heartbeat(BEAT)
    assert caught.value.retry_after_seconds == 12


def test_a_server_that_is_no_portal_is_recognized(
    link: PortalConnection, portal: RecordingPortal
) -> None:
    portal.refuse_always(Refusal(200))
    with pytest.raises(PortalRefusedError, match="Check that the address"):
        link.desired(-1, wait_seconds=0)


def test_a_load_balancer_without_servers_is_left_once_its_health_fails_as_well(
    portal: RecordingPortal,
) -> None:
    with RecordingPortal() as other:
        portal.refuse_always(Refusal(502, "Bad Gateway", {"Retry-After": "60"}))
        portal.recording.is_healthy = False
        points = AccessPoints([portal.url, other.url])
        prober = AccessPointProber(points)
        link = PortalConnection(points, agent_token=AGENT_TOKEN)
        for _ in range(2):
            with pytest.raises(PortalUnreachableError) as caught:
                link.heartbeat(BEAT)
            assert caught.value.retry_after_seconds == 0
        prober.check()
        link.heartbeat(BEAT)
        assert len(other.recording.heartbeats) == 1
        link.close()


def test_an_overloaded_portal_is_waited_for_although_there_is_another(
    portal: RecordingPortal,
) -> None:
    points = AccessPoints([portal.url, NOWHERE])
    link = PortalConnection(points, agent_token=AGENT_TOKEN)
    portal.refuse_always(Refusal(429, "busy", {"Retry-After": "12"}))
    with pytest.raises(PortalUnreachableError) as caught:
        link.heartbeat(BEAT)
    assert caught.value.retry_after_seconds == 12
    assert points.current == portal.url
    link.close()
