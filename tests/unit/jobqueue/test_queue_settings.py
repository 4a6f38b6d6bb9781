"""Queue settings of a tenant: validation, and the data paths that jobs may mount."""

import pytest
from sqlalchemy.orm import Session

from core.errors import ForbiddenError, InvalidInputError
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.jobs.settings import DataRoot, QueueSettings, mount_errors, set_settings
from protocol.job_spec import Mount, Port
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.jobqueue.builders import GIB, start, submit

ROOTS = [DataRoot(path="/data/shared"), DataRoot(path="/scratch", is_read_only=False)]


def test_all_errors_are_shown_at_once(session: Session, cast: Cast) -> None:
    settings = QueueSettings(
        placement_policy="best",
        max_gpus=-1,
        data_roots=[DataRoot(path=path) for path in ("data", "/etc/ssl", "/a", "/a/b", "/b/../c")],
    )
    with pytest.raises(InvalidInputError) as caught:
        set_settings(session, scope_of(cast.alice), cast.acme.id, settings)
    assert set(caught.value.errors) == {"placement_policy", "max_gpus", "data_roots"}
    assert len(caught.value.errors["data_roots"]) == 4


def test_a_member_may_not_change_queue_settings(session: Session, cast: Cast) -> None:
    with pytest.raises(ForbiddenError):
        set_settings(session, scope_of(cast.bob), cast.acme.id, QueueSettings())


@pytest.mark.parametrize(
    ("source", "is_read_only", "word"),
    [
        ("/data/shared/images", True, ""),
        ("/scratch", False, ""),
        ("/scratch", True, ""),
        ("/data/shared/images", False, "read-only"),
        # A job could leave a link in it.
        ("/scratch/link", True, "as a whole"),
        ("/data/shared/../other", True, "without '..'"),
        ("/data/sharedness", True, "not in a data root"),
        ("/", True, "not in a data root"),
    ],
)
def test_a_data_path_must_be_in_a_root(source: str, is_read_only: bool, word: str) -> None:  # noqa: FBT001
    mount = Mount(source=source, target="/data", is_read_only=is_read_only)
    errors = list(mount_errors([mount], ROOTS))
    assert len(errors) == bool(word)
    assert word in " ".join(errors)


def test_fields_of_a_job_reach_the_agent(session: Session, cast: Cast) -> None:
    set_settings(session, scope_of(cast.alice), cast.acme.id, QueueSettings(data_roots=ROOTS))
    mount = Mount(source="/data/shared", target="/data")
    attempt = start(
        session,
        cast,
        mounts=[mount],
        ports=[Port(container_port=8888, name="web")],
        working_dir="/workspace",
        shared_memory_bytes=GIB // 2,
        time_limit_seconds=3600,
        stop_grace_seconds=120,
    )
    [spec] = desired_state(session, attempt.appliance_id, box=BOX).attempts
    assert (spec.mounts, spec.ports) == ([mount], [Port(container_port=8888, name="web")])
    assert (spec.working_dir, spec.shared_memory_bytes) == ("/workspace", GIB // 2)
    assert (spec.time_limit_seconds, spec.stop_grace_seconds) == (3600, 120)


@pytest.mark.parametrize(
    "ports",
    [
        [Port(container_port=80), Port(container_port=80, name="web")],
        [Port(container_port=80, name="web"), Port(container_port=81, name="web")],
        [Port(container_port=80), Port(container_port=81, name="80")],
    ],
)
def test_each_port_is_listed_by_its_own_name_or_number(
    session: Session, cast: Cast, ports: list[Port]
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        submit(session, cast.bob, ports=ports)
    assert set(caught.value.errors) == {"ports"}


def test_every_error_of_a_request_is_shown_at_once(session: Session, cast: Cast) -> None:
    with pytest.raises(InvalidInputError) as caught:
        submit(
            session,
            cast.bob,
            name="",
            mounts=[Mount(source="/data", target="/data")],
            ports=[Port(container_port=0)],
            priority=1,
            max_retries=99,
            retry_on=["fire"],
            time_limit_seconds=-1,
            gpu_models=["H100"],
            required_labels={"": "x"},
            working_dir="here",
            shared_memory_bytes=-1,
            container_policy="open",
            appliance_id="nowhere",
        )
    assert set(caught.value.errors) == {
        "name",
        "mounts",
        "ports",
        "priority",
        "max_retries",
        "retry_on",
        "time_limit_seconds",
        "gpu_models",
        "required_labels",
        "working_dir",
        "shared_memory_bytes",
        "container_policy",
        "appliance_id",
    }
    assert submit(session, cast.alice, priority=1).queue_at < NOON
