"""Enrolment: the identity is kept secret, and a refusal says what to do."""

from pathlib import Path

import pytest

from collector.enrolment import enroll
from collector.errors import EnrolmentError
from collector.identity import Identity, load_identity
from jobqueue.executors.wire import Inventory
from tests.fixtures.recording_portal import AGENT_TOKEN, ENROL_TOKEN, RecordingPortal, Refusal


def enroll_here(url: str, data_dir: Path, *, token: str = ENROL_TOKEN) -> Identity:
    return enroll(
        portal_url=url,
        token=token,
        name="dgx-1",
        inventory=Inventory(hostname="dgx-1"),
        data_dir=data_dir,
        site="Delft",
        labels={"rack": "r7"},
    )


def test_a_token_becomes_an_identity_that_is_kept(portal: RecordingPortal, tmp_path: Path) -> None:
    identity = enroll_here(portal.url, tmp_path / "agent")
    assert identity == Identity(
        appliance_id="appliance-1", tenant_id="acme", agent_token=AGENT_TOKEN
    )
    assert load_identity(tmp_path / "agent") == identity
    [request] = portal.recording.enrolments
    assert (request.name, request.site, request.labels) == ("dgx-1", "Delft", {"rack": "r7"})


def test_only_the_agents_user_can_read_the_identity(
    portal: RecordingPortal, tmp_path: Path
) -> None:
    enroll_here(portal.url, tmp_path)
    assert (tmp_path / "identity.json").stat().st_mode & 0o777 == 0o600


def test_a_token_that_was_used_says_to_ask_for_a_new_one(
    portal: RecordingPortal, tmp_path: Path
) -> None:
    enroll_here(portal.url, tmp_path)
    with pytest.raises(EnrolmentError, match=r"token used or expired.*Ask for a new one"):
        enroll_here(portal.url, tmp_path)


def test_another_refusal_is_told_in_the_portals_words(
    portal: RecordingPortal, tmp_path: Path
) -> None:
    portal.refuse(Refusal(422, "name: dgx-1 is taken"))
    with pytest.raises(EnrolmentError, match=r"refused to enrol this appliance.*dgx-1 is taken"):
        enroll_here(portal.url, tmp_path)


def test_a_portal_that_is_not_there_says_to_check_the_address(tmp_path: Path) -> None:
    with pytest.raises(EnrolmentError, match=r"can't be reached.*Check the address"):
        enroll_here("http://127.0.0.1:9", tmp_path)


def test_a_folder_that_cannot_be_written_costs_no_token(
    portal: RecordingPortal, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnrolmentError, match=r"file/agent can't be written.*--data-dir"):
        enroll_here(portal.url, tmp_path / "file" / "agent")
    assert portal.recording.enrolments == []


def test_an_appliance_that_was_never_enrolled_has_no_identity(tmp_path: Path) -> None:
    assert load_identity(tmp_path) is None


def test_a_damaged_identity_says_to_enrol_again(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text("{}")
    with pytest.raises(EnrolmentError, match=r"enrol again"):
        load_identity(tmp_path)
