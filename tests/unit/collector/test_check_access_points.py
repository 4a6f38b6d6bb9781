"""`vedette agent check` with several access points: each is checked, and the choice is shown."""

from pathlib import Path

from collector.checks.connections import CheckResult, Verdict, check_connections
from collector.config import AgentConfig
from collector.sending.access_points import AccessPoints
from collector.sending.listed import AccessPointFile
from core.clock import utc_now
from tests.fixtures.recording_portal import RecordingPortal
from tests.unit.collector.listed_points import accept

NOWHERE = "http://127.0.0.1:9"


def results(portal: RecordingPortal, folder: Path) -> dict[str, CheckResult]:
    config = AgentConfig(portal_urls=[portal.url + "/"], data_dir=folder)
    return {result.name: result for result in check_connections(config, None, clock=utc_now)}


def test_the_access_point_in_use_and_the_reason_are_shown(
    portal: RecordingPortal, tmp_path: Path
) -> None:
    with RecordingPortal() as other:
        points = AccessPoints([portal.url], file=AccessPointFile(tmp_path))
        accept(points, {NOWHERE: 100, other.url: 100})
        points.record_probes({other.url: 0.01, portal.url: 0.01})
        points.save()
        checks = results(portal, tmp_path)
    assert checks[f"portal {other.url}"].verdict is Verdict.OK
    assert checks[f"portal {NOWHERE}"].verdict is Verdict.WARNING, "others answer"
    message = checks["access points"].message
    assert f"in use: {other.url}; the portal lists 2" in message
    assert message.endswith(f"1 moves, 0 failovers, the last because: {portal.url} is not listed")


def test_with_one_address_nothing_is_said_about_a_choice(
    portal: RecordingPortal, tmp_path: Path
) -> None:
    assert "access points" not in results(portal, tmp_path)
