"""The operators' pages and resources: console, tenants, quotas, removal, housekeeping, usage."""

import io
import zipfile
from datetime import timedelta

import pytest
from sqlalchemy import select

from alerting.notification.models import Notification
from alerting.rules.platform_rules import forget_tenant
from alerting.states import NotificationState
from backup.repository import Stored
from backup.runs import end_run, request_backup
from core.clock import to_ns
from core.db import SessionFactory
from core.leases import SCHEDULER_LEASE, Lease
from core.settings import ServerSettings
from jobqueue.logs.log_files import LogFiles
from jobqueue.models import Job
from tenants.auditing.drafts import Actor
from tenants.auditing.recording import acting
from tenants.lifecycle.removal_worker import SETTLE, Remover, run_removals
from tenants.lifecycle.usage import SampleCounts, store_sample_counts
from tenants.models import (
    AuditEntry,
    Invitation,
    Role,
    ServerProcess,
    Tenant,
    TenantQuota,
    TenantRemoval,
    TenantState,
    TenantUsage,
)
from tests.cast import NOON, Cast, FrozenClock
from tests.unit.dash_app.lost_store import LostStore
from tests.unit.portal.conftest import Browser
from tests.unit.portal.world import World
from timeseries.points import Point
from timeseries.store import Store, write

OPERATORS_PAGES = ("/console", "/console/removals", "/console/maintenance", "/tenants")
OPERATORS_RESOURCES = ("summary", "growth", "processes", "removals", "maintenance", "notifications")


def limit(sessions: SessionFactory, cast: Cast, **limits: int) -> None:
    with sessions.begin() as session:
        session.merge(TenantQuota(tenant_id=cast.acme.id, **limits))


def test_the_console_shows_the_processes_of_the_portal(
    olivia: Browser, sessions: SessionFactory, cast: Cast
) -> None:
    assert cast
    assert "No process has reported yet" in olivia.get("/console").text
    with sessions.begin() as session:
        for name, seconds in (("a:1", 1), ("b:2", 60)):
            seen_at = NOON - timedelta(seconds=seconds)
            session.add(
                ServerProcess(
                    holder=name,
                    url="http://a",
                    version="9.8",
                    started_at=NOON,
                    seen_at=seen_at,
                    broker="connected",
                )
            )
        session.add(Lease(name=SCHEDULER_LEASE, holder="a:1", expires_at=NOON + timedelta(1)))
    page = olivia.get("/console").text
    assert page.count("9.8") == 2
    assert page.count(">active scheduler</span>") == 1
    assert "Silent" in page
    assert page.count("Redis connected") == 1
    listed = olivia.get("/api/v1/platform/processes").get_json()["items"]
    assert [(item["name"], item["is_responding"], item["is_scheduler"]) for item in listed] == [
        ("a:1", True, True),
        ("b:2", False, False),
    ]
    assert (listed[0]["cpu_percent"], listed[0]["broker"]) == (0.0, "connected")
    load = ("requests_per_second", "cpu_percent", "memory_bytes", "broker", "broker_since")
    assert [listed[1][name] for name in load] == [None] * 5


@pytest.mark.parametrize(
    ("brokers", "shown"),
    [
        (["none", "none"], ""),
        (["connected", "connected"], ""),
        (["connected", "away"], "Redis is away for 1 of 2 processes."),
        (["connected", "none"], "1 of 2 processes don\u2019t use Redis,"),
    ],
)
@pytest.mark.usefixtures("cast")
def test_the_console_shows_which_processes_have_lost_redis(
    olivia: Browser, sessions: SessionFactory, brokers: list[str], shown: str
) -> None:
    with sessions.begin() as session:
        for number, broker in enumerate(brokers):
            since = NOON - timedelta(minutes=3)
            process = ServerProcess(holder=f"a:{number}", url="http://a", version="1")
            process.broker, process.broker_since = broker, since
            process.started_at = process.seen_at = NOON
            session.add(process)
    page = olivia.get("/console").text
    assert page.count('class="alert alert-warning"') == bool(shown)
    assert shown in page
    has_broker = set(brokers) != {"none"}
    assert page.count("Redis connected") == brokers.count("connected")
    assert page.count("without Redis") == has_broker * brokers.count("none")
    assert page.count("Redis away</strong><br>lost <time") == brokers.count("away")
    listed = olivia.get("/api/v1/platform/processes").get_json()["items"]
    assert [item["broker"] for item in listed] == brokers
    assert listed[0]["broker_since"] == "2026-03-02T11:57:00+00:00"


@pytest.mark.usefixtures("world")
def test_the_console_shows_every_tenant_with_what_it_uses(
    olivia: Browser, store: Store, cast: Cast
) -> None:
    points = [
        Point(
            "gpu", {"gpu": "0"}, {"utilization_percent": 64.0}, to_ns(NOON - timedelta(seconds=s))
        )
        for s in range(1, 901)
    ]
    assert write(store, points, identity={"tenant": cast.acme.id, "appliance": "a"}) == []
    page = olivia.get("/console").text
    assert "Acme" in page
    assert "Globex" in page
    assert "64 %" in page
    summary = olivia.get("/api/v1/platform/summary").json
    assert summary is not None
    acme = next(tenant for tenant in summary["tenants"] if tenant["slug"] == "acme")
    assert (acme["appliances"], acme["gpus"], acme["active_jobs"]) == (1, 2, 1)
    assert acme["points_per_second"] == pytest.approx(1.0)
    assert summary["appliances_by_state"]["online"] == 1


def test_the_figures_are_cached_for_a_minute(
    olivia: Browser, cast: Cast, sessions: SessionFactory, clock: FrozenClock
) -> None:
    assert cast
    assert "Initech" not in olivia.get("/console").text
    with sessions.begin() as session:
        session.add(
            Tenant(slug="initech", name="Initech", state=TenantState.ACTIVE, created_at=NOON)
        )
    assert "Initech" not in olivia.get("/console").text
    clock.advance(61)
    assert "Initech" in olivia.get("/console").text


@pytest.mark.usefixtures("world")
class TestWithoutAStore:
    """The console while the store is away."""

    @pytest.fixture
    def store(self) -> LostStore:
        return LostStore()

    def test_it_shows_what_the_database_knows(self, olivia: Browser) -> None:
        answer = olivia.get("/console")
        assert answer.status_code == 200
        assert "not available" in answer.text


def test_a_tenants_admin_sees_no_page_of_the_operators(alice: Browser) -> None:
    for path in OPERATORS_PAGES:
        assert alice.get(path).status_code == 403


@pytest.mark.parametrize("name", OPERATORS_RESOURCES)
def test_a_tenants_admin_gets_nothing_of_the_platform(alice: Browser, name: str) -> None:
    assert alice.get(f"/api/v1/platform/{name}").status_code == 403


@pytest.mark.usefixtures("world")
def test_an_operator_gets_all_of_the_platform(olivia: Browser) -> None:
    for name in OPERATORS_RESOURCES:
        assert olivia.get(f"/api/v1/platform/{name}").status_code == 200


def test_a_tenant_is_added_with_an_invitation_for_its_first_admin(
    olivia: Browser, sessions: SessionFactory
) -> None:
    answer = olivia.post("/tenants", {"name": "Initech", "email": "peter@initech.example"})
    assert answer.status_code == 200
    assert 'aria-label="Invitation link"' in answer.text
    with sessions() as session:
        invitation = session.scalars(select(Invitation)).one()
        assert invitation.tenant is not None
        assert (invitation.tenant.slug, invitation.role) == ("initech", Role.ADMIN)


def test_a_tenant_is_not_added_when_its_first_admin_can_not_be_invited(
    olivia: Browser, sessions: SessionFactory
) -> None:
    answer = olivia.post("/tenants", {"name": "Initech", "email": "nonsense"})
    assert answer.status_code == 422
    with sessions() as session:
        assert session.scalar(select(Tenant).where(Tenant.slug == "initech")) is None


def test_tenants_are_searched_and_narrowed(olivia: Browser) -> None:
    assert "Globex" not in olivia.get("/tenants?search=acm").text
    assert 'class="vd-empty"' in olivia.get("/tenants?state=closed").text


def test_quotas_are_changed_on_a_page(olivia: Browser, cast: Cast) -> None:
    form: dict[str, object] = {
        "max_appliances": "20",
        "max_storage_bytes": "50 GiB",
        "max_gpus": "",
    }
    answer = olivia.post(f"/tenants/{cast.acme.id}/quotas", form)
    assert answer.status_code == 302
    page = olivia.get(f"/tenants/{cast.acme.id}").text
    assert "0 of 20" in page
    assert "limit 50" in page
    assert "50 GiB" in olivia.get(f"/tenants/{cast.acme.id}/quotas").text


@pytest.mark.parametrize("wrong", ["-1", "many", "1.5"])
def test_a_quota_that_is_no_number_is_refused(olivia: Browser, cast: Cast, wrong: str) -> None:
    answer = olivia.post(f"/tenants/{cast.acme.id}/quotas", {"max_gpus": wrong})
    assert answer.status_code == 422


def test_quotas_are_changed_by_rest_and_audited(
    olivia: Browser, cast: Cast, sessions: SessionFactory
) -> None:
    answer = olivia.call("PATCH", f"/api/v1/tenants/{cast.acme.id}/quotas", json={"max_gpus": 8})
    assert answer.json == {
        "max_appliances": None,
        "max_gpus": 8,
        "max_active_jobs": None,
        "max_series": None,
        "max_measurements": None,
        "max_fields": None,
        "max_storage_bytes": None,
        "max_waiting_jobs": None,
        "max_rules": None,
        "max_receivers": None,
        "max_schedules": None,
        "max_dashboards": None,
        "max_data_bytes": None,
    }
    with sessions() as session:
        (entry,) = session.scalars(select(AuditEntry).where(AuditEntry.target_kind == "quota"))
        assert entry.after == {"max_gpus": 8}


def test_an_admin_sees_use_against_quotas_and_what_is_nearly_reached(
    alice: Browser, world: World, cast: Cast, sessions: SessionFactory
) -> None:
    assert world
    limit(sessions, cast, max_appliances=1, max_storage_bytes=1000)
    with sessions.begin() as session:
        session.add(
            TenantUsage(
                tenant_id=cast.acme.id,
                day=NOON.date(),
                measured_at=NOON,
                appliances=1,
                gpus=2,
                points=10,
                storage_bytes=850,
            )
        )
    page = alice.get("/usage").text
    assert "1 of 1" in page
    assert "No more appliances can enroll" in page
    assert "Close to the quota" in page
    uses = (alice.get(f"/api/v1/tenants/{cast.acme.id}/usage").json or {})["uses"]
    assert [use["name"] for use in uses if use["is_near"]] == ["Appliances", "Storage"]


def test_an_admin_sees_names_against_the_quota_of_the_tenant_or_the_server(
    alice: Browser, cast: Cast, sessions: SessionFactory
) -> None:
    limit(sessions, cast, max_measurements=40)
    with sessions.begin() as session:
        store_sample_counts(session, "one:1", {cast.acme.id: SampleCounts(9, 39, 700)}, now=NOON)

    page = alice.get("/usage").text
    uses = (alice.get(f"/api/v1/tenants/{cast.acme.id}/usage").json or {})["uses"]

    uses_by_name = {use["name"]: (use["used"], use["most"], use["is_near"]) for use in uses}
    assert uses_by_name["Measurements"] == (39, 40, True)
    assert uses_by_name["Fields"] == (700, 2000, False)
    assert uses_by_name["Series"] == (9, 200_000, False)
    assert "39 of 40" in page


def test_a_tenant_is_closed_and_removed_with_its_export(
    *,
    olivia: Browser,
    cast: Cast,
    sessions: SessionFactory,
    store: Store,
    settings: ServerSettings,
    clock: FrozenClock,
) -> None:
    path = f"/tenants/{cast.acme.id}"
    assert "Close the tenant first" in olivia.get(f"{path}/removal").text
    assert olivia.post(f"{path}/state", {"move": "close"}).status_code == 302
    assert olivia.post(f"{path}/removal", {"name": "acme"}).status_code == 422
    assert olivia.post(f"{path}/removal", {"name": "Acme"}).status_code == 302
    assert "exporting" in olivia.get("/console/removals").text
    clock.advance(SETTLE.total_seconds())
    acted = acting(sessions, Actor(name="scheduler", via="scheduler"), clock=clock)
    remover = Remover(
        logs=LogFiles(settings.resolved_log_url),
        sessions=acted,
        store=store,
        folder=settings.exports_dir,
        delete_images=lambda _slug: None,
        forget=forget_tenant,
        clock=clock,
        is_stopping=lambda: False,
    )
    assert run_removals(remover) == 1
    (removal,) = (olivia.get("/api/v1/platform/removals").json or {})["items"]
    assert (removal["state"], removal["has_file"]) == ("removed", True)
    archive = olivia.get(f"/console/removals/{removal['id']}/export")
    assert archive.headers["Content-Type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(archive.data)) as file:
        assert "tables/users.jsonl" in file.namelist()
    archive.close()
    assert olivia.get(path).status_code == 404
    assert olivia.post(f"/console/removals/{removal['id']}/discard").status_code == 302
    assert olivia.get(f"/console/removals/{removal['id']}/export").status_code == 404
    assert list(settings.exports_dir.iterdir()) == []


def test_a_removal_is_requested_by_rest_with_id_and_name(olivia: Browser, cast: Cast) -> None:
    body = {"tenant_id": cast.acme.id, "name": "Acme"}
    refused = olivia.call("POST", "/api/v1/platform/removals", json=body)
    assert (refused.status_code, (refused.json or {})["code"]) == (409, "tenant_not_closed")
    assert olivia.call("POST", f"/api/v1/tenants/{cast.acme.id}/close").status_code == 200
    made = olivia.call("POST", "/api/v1/platform/removals", json=body)
    assert (made.status_code, (made.json or {})["state"]) == (202, "exporting")


def test_failed_notifications_are_retried_and_discarded(
    olivia: Browser, world: World, sessions: SessionFactory
) -> None:
    ident = world.ids["notification_id"]
    assert "refused" in olivia.get("/console/maintenance").text
    assert olivia.post(f"/console/maintenance/notifications/{ident}/retry").status_code == 302
    with sessions() as session:
        notification = session.get_one(Notification, ident)
        assert (notification.state, notification.tries) == (NotificationState.WAITING, 0)
    assert olivia.call("DELETE", f"/api/v1/platform/notifications/{ident}").status_code == 204
    with sessions() as session:
        assert session.get(Notification, ident) is None


def test_a_sent_notification_can_not_be_retried(
    olivia: Browser, world: World, sessions: SessionFactory
) -> None:
    ident = world.ids["notification_id"]
    with sessions.begin() as session:
        session.get_one(Notification, ident).state = NotificationState.SENT
    answer = olivia.call("POST", f"/api/v1/platform/notifications/{ident}/retry")
    assert (answer.status_code, (answer.json or {})["code"]) == (409, "notification_sent")


def test_all_failed_notifications_are_discarded_at_once(
    olivia: Browser, world: World, sessions: SessionFactory
) -> None:
    assert world
    assert olivia.post("/console/maintenance/notifications/discard-all").status_code == 302
    with sessions() as session:
        assert session.scalars(select(Notification)).all() == []


def test_maintenance_shows_how_the_backups_go(
    olivia: Browser, sessions: SessionFactory, cast: Cast
) -> None:
    assert cast
    assert "makes no backups" in olivia.get("/console/maintenance").text
    with sessions.begin() as session:
        made = request_backup(session, now=NOON)
        stored = Stored(snapshot="4b0f792d", total_bytes=3 * 2**30, added_bytes=2**20)
        end_run(session, made.id, stored=stored, data_at=NOON, now=NOON)
        failed = request_backup(session, now=NOON)
        end_run(session, failed.id, error="The disk is full.", now=NOON)
    page = olivia.get("/console/maintenance").text
    for text in ("4b0f792d", "3 GiB", "The last backup failed", "The disk is full."):
        assert text in page


def test_jobs_that_ended_long_ago_are_deleted(
    olivia: Browser, world: World, sessions: SessionFactory, clock: FrozenClock
) -> None:
    ident = world.ids["job_id"]
    with sessions.begin() as session:
        job = session.get_one(Job, ident)
        job.state, job.finished_at = type(job.state).SUCCEEDED, clock.now
    assert (olivia.call("POST", "/api/v1/platform/jobs/clean").json or {})["deleted"] == 0
    with sessions.begin() as session:
        session.get_one(Job, ident).finished_at = clock.now - timedelta(days=91)
    assert "1 job ended" in olivia.get("/console/maintenance").text
    assert olivia.post("/console/maintenance/jobs/clean").status_code == 302
    with sessions() as session:
        assert session.get(Job, ident) is None


def test_the_export_is_not_found_where_no_file_lies(
    olivia: Browser, world: World, sessions: SessionFactory
) -> None:
    with sessions.begin() as session:
        removal = session.get_one(TenantRemoval, world.ids["removal_id"])
        removal.exported_at = NOON
    answer = olivia.get(f"/api/v1/platform/removals/{world.ids['removal_id']}/export")
    assert answer.status_code == 404


def test_operators_add_and_test_receivers_of_the_platform_which_tenants_never_see(
    olivia: Browser, alice: Browser
) -> None:
    hook = {"name": "Pager", "kind": "webhook", "target": "https://u:p@hooks.example/T1/s3cr3t"}
    made = olivia.call("POST", "/api/v1/platform/receivers", json=hook).json
    assert made is not None
    assert made["secret"].startswith("vdw")
    ident = made["id"]
    wrong = olivia.post("/console/receivers", {**hook, "name": "Standby", "kind": "email"})
    assert "is not an email address" in wrong.text
    form = {"name": "Standby", "kind": "email", "target": "duty@vedette.example"}
    olivia.post("/console/receivers", form)
    shown = olivia.get("/console/receivers").text
    assert "https://hooks.example/…" in shown
    assert "duty@vedette.example" in shown
    assert "s3cr3t" not in shown
    assert "Pager" not in olivia.get("/receivers").text
    olivia.post(f"/console/receivers/{ident}/test")
    assert "Pager" in olivia.get("/console/receivers").text.partition("Recent notifications")[2]
    rule = {"name": "Hot", "expression": "max(custom.x_watts) over 5m > 1", "receivers": "Standby"}
    olivia.post("/console/rules/new", rule)
    assert "Standby" in olivia.get("/console/rules").text
    olivia.call("PATCH", f"/api/v1/platform/receivers/{ident}", json={"name": "Beeper"})
    assert "Beeper" in olivia.get("/console/receivers").text

    for path in ("/receivers", "/notification-policy", "/rules/new"):
        text = alice.get(path).text
        assert "Beeper" not in text
        assert "Standby" not in text
    listed = alice.get("/api/v1/receivers").json
    assert listed is not None
    assert listed["items"] == []
    assert alice.get(f"/api/v1/receivers/{ident}").status_code == 404
    assert alice.get(f"/receivers/{ident}").status_code == 404
    assert alice.get("/console/receivers").status_code == 403
    policy = {"route": {"receivers": ["Standby"]}}
    assert alice.call("PUT", "/api/v1/notification-policy", json=policy).status_code == 422
