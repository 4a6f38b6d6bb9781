"""`/agent/v1/*` over real HTTP: enrollment, heartbeats, desired state, reports and logs."""

import gzip
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import msgspec
import pytest
import requests
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from access.longpoll import INTERVAL_SECONDS
from core.clock import to_ns
from core.db import SessionFactory
from jobqueue.models import Attempt
from jobqueue.states import AttemptState, JobState
from protocol.attempts import (
    AttemptObservation,
    DesiredState,
    LogAck,
    LogChunk,
    LogReply,
    LogUpload,
    ObservedReport,
    ObservedState,
)
from protocol.enrollment import EnrollReply, EnrollRequest
from protocol.gpu_processes import MAX_GPU_PROCESSES, GPUProcess
from protocol.health import (
    ApplianceHealth,
    GPUHealth,
    HealthFinding,
    HealthReason,
    HealthState,
    advice_for,
)
from protocol.heartbeat import Heartbeat
from protocol.inventory import Inventory
from tenants.enrollment import create_enrollment_token
from tenants.fleet.appliances import bump_generation, read_gpu_processes, read_health
from tenants.models import Appliance, ApplianceState
from tests.cast import NOON, Cast, FrozenClock, make_appliance, scope_of
from tests.unit.access.conftest import OTHER_SECRET, SECRET, AgentAPI, eventually
from tests.unit.jobqueue.builders import dispatch, inventory, submit
from tests.unit.portal.test_sign_in_cost import statements

GPU_WITHOUT_INDEX = (
    b'{"agent_version": "1", "sent_at_ns": 1, "inventory": '
    b'{"hostname": "a", "gpus": [{"index": "x"}]}}'
)
INVENTORY = Inventory(hostname="dgx-01", cpu_count=64, executors=["docker"])


@pytest.fixture
def attempt(sessions: SessionFactory, cast: Cast, dgx: Appliance) -> Attempt:
    """An attempt that `dgx` is to run."""
    with sessions.begin() as session:
        session.get_one(Appliance, dgx.id).inventory = inventory("dgx-01")
        job = submit(session, cast.alice, gpus=1)
        dispatch(session, now=NOON)
        session.refresh(job)
        assert job.attempt is not None
        return job.attempt


def body(struct: msgspec.Struct) -> bytes:
    return msgspec.json.encode(struct)


def row(sessions: SessionFactory, attempt: Attempt) -> Attempt:
    with sessions() as session:
        return session.get_one(Attempt, attempt.id)


def enrollment_secret(session: Session, cast: Cast) -> str:
    _, secret = create_enrollment_token(
        session, scope_of(cast.alice), site="Berlin", lifetime=timedelta(hours=1), now=NOON
    )
    return secret


def desired(api: AgentAPI, **params: object) -> requests.Response:
    return api.request("GET", "/agent/v1/desired", params=params)


def test_a_token_is_traded_for_an_identity_once(
    api: AgentAPI, sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        token = enrollment_secret(session, cast)
    request = EnrollRequest(token=token, name="dgx-09", inventory=INVENTORY, site="Paris")
    first = api.request("POST", "/agent/v1/enroll", data=body(request))
    second = api.request("POST", "/agent/v1/enroll", data=body(request))
    assert (first.status_code, second.status_code) == (201, 401)
    reply = msgspec.json.decode(first.content, type=EnrollReply)
    assert reply.tenant_id == cast.acme.id
    with sessions() as session:
        enrolled = session.get_one(Appliance, reply.appliance_id)
        assert (enrolled.name, enrolled.site) == ("dgx-09", "Berlin")
        assert enrolled.inventory == msgspec.to_builtins(INVENTORY)
    header = {"Authorization": f"Token {reply.agent_token}"}
    assert api.write(b"", headers=header).status_code == 204


def test_a_name_that_no_host_has_is_refused_by_field(
    api: AgentAPI, sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        token = enrollment_secret(session, cast)
    request = EnrollRequest(token=token, name="no such name", inventory=INVENTORY)
    response = api.request("POST", "/agent/v1/enroll", data=body(request))
    assert response.status_code == 422
    assert set(response.json()["errors"]) == {"name"}


def test_a_heartbeat_brings_an_appliance_online(
    api: AgentAPI, sessions: SessionFactory, dgx: Appliance, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        session.get_one(Appliance, dgx.id).state = ApplianceState.LOST
    clock.advance(60)
    beat = Heartbeat(
        agent_version="0.1.0", sent_at_ns=to_ns(NOON + timedelta(seconds=120)), inventory=INVENTORY
    )
    assert api.request("POST", "/agent/v1/heartbeat", data=body(beat)).status_code == 204
    with sessions() as session:
        alive = session.get_one(Appliance, dgx.id)
        assert (alive.state, alive.last_seen_at) == (ApplianceState.ONLINE, clock.now)
        assert (alive.clock_skew_seconds, alive.agent_version) == (60, "0.1.0")


def test_a_heartbeat_reports_health_and_that_of_an_old_agent_none(
    api: AgentAPI, sessions: SessionFactory, dgx: Appliance
) -> None:
    finding = HealthFinding(reason=HealthReason.LOST, state=HealthState.FAILED, detail="Gone.")
    gpu = GPUHealth(index=0, uuid="GPU-0", state=HealthState.FAILED, findings=[finding])
    told = ApplianceHealth(state=HealthState.DEGRADED, gpus=[gpu], appliance_class="1 x entry")
    for health in (told, None):
        beat = Heartbeat(
            agent_version="1", sent_at_ns=to_ns(NOON), inventory=INVENTORY, health=health
        )
        assert api.request("POST", "/agent/v1/heartbeat", data=body(beat)).status_code == 204
        with sessions() as session:
            appliance = session.get_one(Appliance, dgx.id)
            assert read_health(appliance) == health
            assert appliance.health_state == (health.state.value if health else None)


def test_a_heartbeat_lists_gpu_processes_for_as_long_as_the_appliance_is_online(
    api: AgentAPI, sessions: SessionFactory, dgx: Appliance
) -> None:
    process = GPUProcess(pid=7, name="python3", gpu=0, uuid="GPU-0", owner="host")
    for processes in ([process], []):
        beat = Heartbeat(agent_version="1", sent_at_ns=to_ns(NOON), gpu_processes=processes)
        assert api.request("POST", "/agent/v1/heartbeat", data=body(beat)).status_code == 204
        with sessions.begin() as session:
            stored = session.get_one(Appliance, dgx.id)
            assert read_gpu_processes(stored) == processes
            stored.state = ApplianceState.STALE
            assert read_gpu_processes(stored) is None
    too_many = Heartbeat(
        agent_version="1", sent_at_ns=to_ns(NOON), gpu_processes=[process] * (MAX_GPU_PROCESSES + 1)
    )
    assert api.request("POST", "/agent/v1/heartbeat", data=body(too_many)).status_code == 422


def test_a_finding_unknown_to_the_portal_is_stored(
    api: AgentAPI, sessions: SessionFactory, dgx: Appliance
) -> None:
    finding = HealthFinding(reason="coolant_low", state=HealthState.DEGRADED, detail="It drips.")
    told = ApplianceHealth(state=HealthState.DEGRADED, findings=[finding])
    beat = Heartbeat(agent_version="9", sent_at_ns=to_ns(NOON), inventory=INVENTORY, health=told)
    assert api.request("POST", "/agent/v1/heartbeat", data=body(beat)).status_code == 204
    with sessions() as session:
        assert read_health(session.get_one(Appliance, dgx.id)) == told
    assert advice_for("coolant_low").name == "coolant low"


def test_only_a_heartbeat_counts_as_a_sign_of_life(
    api: AgentAPI, sessions: SessionFactory, dgx: Appliance, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        session.get_one(Appliance, dgx.id).state = ApplianceState.STALE
    clock.advance(60)
    api.write("cpu usage_percent=1")
    desired(api)
    with sessions() as session:
        assert session.get_one(Appliance, dgx.id).state is ApplianceState.STALE
        assert session.get_one(Appliance, dgx.id).last_seen_at == NOON


@pytest.mark.parametrize(
    ("sent", "status", "field"),
    [
        (b"{", 400, None),
        (b"\xff\xfe", 400, None),
        (b"[]", 422, "body"),
        (b'{"agent_version": 1}', 422, "agent_version"),
        (GPU_WITHOUT_INDEX, 422, "inventory.gpus[0].index"),
        (
            b'{"agent_version": "1", "sent_at_ns": -5, "inventory": {"hostname": "a"}}',
            422,
            "sent_at_ns",
        ),
        (b'{"agent_version": "1", "sent_at_ns": 1e400, "inventory": {}}', 422, None),
    ],
)
def test_a_faulty_body_is_refused_by_field(
    api: AgentAPI, sent: bytes, status: int, field: str | None
) -> None:
    response = api.request("POST", "/agent/v1/heartbeat", data=sent)
    assert response.status_code in {status, 400}
    assert set(response.json()) == {"code", "status", "message", "errors"}
    if field is not None:
        assert response.status_code == status
        assert set(response.json()["errors"]) == {field}


def test_a_new_agent_receives_its_attempts_immediately(api: AgentAPI, attempt: Attempt) -> None:
    response = desired(api, generation=-1, wait_seconds=30)
    state = msgspec.json.decode(response.content, type=DesiredState)
    assert [spec.attempt_id for spec in state.attempts] == [attempt.id]
    assert state.attempts[0].gpu_uuids == ["GPU-dgx-01-0"]


def test_polls_without_changes_are_204_after_the_wait_and_share_one_query(
    api: AgentAPI, engine: Engine, dgx: Appliance
) -> None:
    def poll(_number: int) -> int:
        generation = dgx.desired_generation
        return desired(api, generation=generation, wait_seconds=0.5).status_code

    desired(api, generation=dgx.desired_generation)
    started = time.monotonic()
    with statements(engine) as sent, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(poll, range(8))) == [204] * 8
    rounds = (time.monotonic() - started) / INTERVAL_SECONDS + 2
    assert time.monotonic() - started > 0.4
    assert 1 <= sum("desired_generation" in statement for statement in sent) <= rounds
    assert not [statement for statement in sent if "attempts" in statement]


def test_a_long_poll_wakes_when_the_generation_moves(
    api: AgentAPI, sessions: SessionFactory, dgx: Appliance
) -> None:
    answers: list[requests.Response] = []
    poll = threading.Thread(
        target=lambda: answers.append(
            desired(api, generation=dgx.desired_generation, wait_seconds=30)
        )
    )
    started = time.monotonic()
    poll.start()
    assert eventually(lambda: api.app.state.watch.waiting == 1)
    with sessions.begin() as session:
        bump_generation(session, dgx.id)
    poll.join(timeout=60)
    assert time.monotonic() - started < 25
    assert answers[0].json()["generation"] == dgx.desired_generation + 1


def test_a_long_poll_does_not_wake_for_another_appliance(
    api: AgentAPI, sessions: SessionFactory, dgx: Appliance, cast: Cast
) -> None:
    with sessions.begin() as session:
        other = make_appliance(session, cast.acme, "dgx-02")
    answers: list[int] = []
    poll = threading.Thread(
        target=lambda: answers.append(
            desired(api, generation=dgx.desired_generation, wait_seconds=1.5).status_code
        )
    )
    poll.start()
    assert eventually(lambda: api.app.state.watch.waiting == 1)
    with sessions.begin() as session:
        bump_generation(session, other.id)
    poll.join(timeout=60)
    assert answers == [204]


def test_a_client_that_hangs_up_frees_its_place(api: AgentAPI, dgx: Appliance) -> None:
    with pytest.raises(requests.Timeout):
        requests.get(
            f"{api.url}/agent/v1/desired",
            params={"generation": dgx.desired_generation, "wait_seconds": 30},
            headers={"Authorization": f"Bearer {SECRET}"},
            timeout=0.5,
        )
    assert eventually(lambda: api.app.state.watch.waiting == 0)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"generation": "latest"}, "generation"),
        ({"generation": "9" * 40}, "generation"),
        ({"wait_seconds": "long"}, "wait_seconds"),
        ({"wait_seconds": "nan"}, "wait_seconds"),
    ],
)
def test_a_faulty_parameter_is_named(api: AgentAPI, params: dict[str, str], field: str) -> None:
    response = desired(api, **params)
    assert response.status_code == 422
    assert set(response.json()["errors"]) == {field}


def test_a_report_moves_an_attempt(
    api: AgentAPI, sessions: SessionFactory, attempt: Attempt
) -> None:
    seen = [AttemptObservation(attempt_id=attempt.id, state=ObservedState.RUNNING)]
    packed = gzip.compress(body(ObservedReport(attempts=seen)))
    response = api.request(
        "POST", "/agent/v1/observed", data=packed, headers={"Content-Encoding": "gzip"}
    )
    assert response.status_code == 204
    stored = row(sessions, attempt)
    assert (stored.state, stored.job.state) == (AttemptState.RUNNING, JobState.RUNNING)


def test_another_appliances_report_moves_nothing(
    api: AgentAPI, sessions: SessionFactory, attempt: Attempt, cast: Cast
) -> None:
    with sessions.begin() as session:
        make_appliance(session, cast.globex, "stranger")
    seen = [AttemptObservation(attempt_id=attempt.id, state=ObservedState.FAILED)]
    response = api.request(
        "POST",
        "/agent/v1/observed",
        data=body(ObservedReport(attempts=seen)),
        headers={"Authorization": f"Bearer {OTHER_SECRET}"},
    )
    assert response.status_code == 204
    assert row(sessions, attempt).state is AttemptState.STARTING


def ship(api: AgentAPI, *chunks: LogChunk) -> list[LogAck]:
    data = msgspec.msgpack.encode(LogUpload(chunks=list(chunks)))
    response = api.request("POST", "/agent/v1/logs", data=data)
    assert response.status_code == 200, response.text
    return msgspec.json.decode(response.content, type=LogReply).acks


def test_logs_are_shipped_piece_by_piece(api: AgentAPI, attempt: Attempt) -> None:
    for offset, data, wanted in [(0, b"hello ", 6), (6, b"world", 11), (6, b"world", 11)]:
        chunk = LogChunk(attempt_id=attempt.id, offset=offset, data=data)
        missing = LogChunk(attempt_id="no-such-id", offset=0, data=b"x")
        assert ship(api, chunk, missing) == [
            LogAck(next_offset=wanted),
            LogAck(next_offset=0, is_unknown=True),
        ]


def test_a_foreign_attempts_log_is_as_unknown_as_a_missing_one(
    api: AgentAPI, attempt: Attempt, sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        make_appliance(session, cast.globex, "stranger")
    api.http.headers["Authorization"] = f"Bearer {OTHER_SECRET}"
    [ack] = ship(api, LogChunk(attempt_id=attempt.id, offset=0, data=b"x"))
    assert ack == LogAck(next_offset=0, is_unknown=True)
    assert row(sessions, attempt).log_bytes == 0


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"x" * (1024 * 1024 + 1), 413),
        (b"no MessagePack", 400),
        (msgspec.msgpack.encode({"chunks": [{"attempt_id": "a", "offset": -1, "data": b""}]}), 422),
    ],
)
def test_an_upload_that_is_none_is_refused(api: AgentAPI, data: bytes, status: int) -> None:
    assert api.request("POST", "/agent/v1/logs", data=data).status_code == status
