"""Enrollment: the identity is kept secret, and a refusal says what to do."""

from pathlib import Path

import pytest

from collector.data_dir import Identity, load_identity
from collector.enrollment import enroll
from collector.errors import EnrollmentError
from protocol.inventory import Inventory
from tests.fixtures.recording_portal import AGENT_TOKEN, ENROLL_TOKEN, RecordingPortal, Refusal


def enroll_here(url: str, data_dir: Path, *, token: str = ENROLL_TOKEN) -> Identity:
    return enroll(
        portal_url=url,
        token=token,
        name="dgx-1",
        inventory=Inventory(hostname="dgx-1"),
        data_dir=data_dir,
        site="Delft",
        labels={"rack": "r7"},
    )


def test_a_token_is_exchanged_for_an_identity_that_is_stored(
    portal: RecordingPortal, tmp_path: Path
) -> None:
    identity = enroll_here(portal.url, tmp_path / "agent")
    assert identity == Identity(
        appliance_id="appliance-1", tenant_id="acme", agent_token=AGENT_TOKEN
    )
    assert load_identity(tmp_path / "agent") == identity
    [request] = portal.recording.enrollments
    assert (request.name, request.site, request.labels) == ("dgx-1", "Delft", {"rack": "r7"})


def test_only_the_agents_user_can_read_the_identity(
    portal: RecordingPortal, tmp_path: Path
) -> None:
    enroll_here(portal.url, tmp_path)
    assert (tmp_path / "identity.json").stat().st_mode & 0o777 == 0o600


def test_the_error_for_a_used_token_says_to_create_a_new_one(
    portal: RecordingPortal, tmp_path: Path
) -> None:
    enroll_here(portal.url, tmp_path)
    with pytest.raises(EnrollmentError, match=r"token used or expired.*Create a new one"):
        enroll_here(portal.url, tmp_path)


@pytest.mark.parametrize("token", ["vde_a\nb", "vde_…"])
def test_a_garbled_token_is_not_sent(portal: RecordingPortal, tmp_path: Path, token: str) -> None:
    with pytest.raises(EnrollmentError, match="Copy it again"):
        enroll_here(portal.url, tmp_path, token=token)
    assert not portal.recording.enrollments


def test_another_refusal_shows_the_portals_message(portal: RecordingPortal, tmp_path: Path) -> None:
    portal.refuse(Refusal(422, "name: dgx-1 is taken"))
    with pytest.raises(EnrollmentError, match=r"refused to enroll this appliance.*dgx-1 is taken"):
        enroll_here(portal.url, tmp_path)


def test_the_error_for_an_unreachable_portal_says_to_check_the_address(tmp_path: Path) -> None:
    with pytest.raises(EnrollmentError, match=r"Can't reach.*Check the address"):
        enroll_here("http://127.0.0.1:9", tmp_path)


def test_an_unwritable_folder_does_not_use_up_the_token(
    portal: RecordingPortal, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnrollmentError, match=r"file/agent.*--data-dir"):
        enroll_here(portal.url, tmp_path / "file" / "agent")
    assert portal.recording.enrollments == []


def test_an_appliance_that_was_never_enrolled_has_no_identity(tmp_path: Path) -> None:
    assert load_identity(tmp_path) is None


def test_the_error_for_a_damaged_identity_says_to_enroll_again(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text("{}")
    with pytest.raises(EnrollmentError, match=r"enroll again"):
        load_identity(tmp_path)
