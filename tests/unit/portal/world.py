"""One of everything in acme, made by the services: what a stranger must not see."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.models import Alert, PlatformRule
from alerting.notification.maintenance_windows import WindowRequest, create_window
from alerting.notification.models import Notification
from alerting.notification.receivers import create_receiver
from alerting.notification.silences import SilenceRequest, create_silence
from alerting.rules.service import create_rule
from alerting.states import AlertState, NotificationState, ReceiverKind, Severity
from core.ids import hash_secret, new_id
from core.settings import ServerSettings
from dash_app.custom.dashboards import DashboardRequest, create_dashboard
from dash_app.custom.views import ViewRequest, create_view
from dash_app.reports.models import ReportPeriod
from dash_app.reports.report import ReportBy, ReportKind
from dash_app.reports.saved import SavedReportRequest, create_saved
from datasets.catalog import DatasetRequest, VersionRequest, create_dataset, create_version
from datasets.connections import ConnectionRequest, create_connection
from datasets.models import VersionState
from datasets.prefetches import PrefetchRequest, create_prefetch
from jobqueue.partitions.checks import PolicyRequest
from jobqueue.partitions.service import create_policy
from jobqueue.projects.service import ProjectRequest, create_project, set_member
from jobqueue.queue.schedules import ScheduleRequest, create_schedule
from jobqueue.queue.templates import TemplateRequest, save_template
from jobqueue.reservations.checks import ReservationRequest
from jobqueue.reservations.service import create_reservation
from jobqueue.simulation.models import Simulation, SimulationState
from jobqueue.simulation.recording import RecordedAppliance, RecordedJob, Recording
from jobqueue.simulation.scenarios import Changes, Scenario, replay
from jobqueue.simulation.service import Comparison
from logs.forwarding.service import ForwardRequest, create_forward
from logs.models import ForwardKind
from marketplace.accounts import admit
from marketplace.budgets.models import BudgetTarget
from marketplace.budgets.requests import BudgetRequest
from marketplace.budgets.service import create_budget
from marketplace.contracts.versions import add_version
from marketplace.models import Contract, Offer
from marketplace.offers.requests import OfferRequest
from marketplace.offers.service import create_offer
from marketplace.states import AccountState, ContractState, Side
from marketplace.support.desk import Desk
from marketplace.support.models import TicketAttachment
from marketplace.support.requests import File, TicketRequest
from marketplace.support.service import create_ticket
from marketplace.terms import Terms
from marketplace.verification.gate import begin
from protocol.gpu_slices import PartitionMode
from protocol.job_spec import JobRequest
from tenants.enrollment import create_enrollment_token
from tenants.fleet.rollouts import AgentPackages, RolloutRequest, start_rollout
from tenants.models import AccessPoint, Appliance, LoginSession, RemovalState, Role, TenantRemoval
from tenants.users.invitations import invite
from tenants.users.sessions import start_session
from tenants.users.tokens import create_api_token
from tenants.write_tokens import create_write_token
from tests.cast import BOX, Cast, scope_of
from tests.unit.portal.world_parts import (
    POWER,
    add_advice,
    add_appeal,
    add_appliance,
    add_document,
    add_image,
    add_price_list,
    hot_gpu_rule,
    make_certificate,
    run_job,
)


@dataclass(frozen=True, slots=True)
class World:
    """Ids of acme's things, by the names that path parameters have."""

    ids: dict[str, str]


def make_world(session: Session, cast: Cast, *, now: datetime) -> World:
    """Make one of everything in acme."""
    scope = scope_of(cast.alice)
    appliance = add_appliance(session, cast, "dgx-01", now=now)
    job = run_job(session, cast, now=now + timedelta(seconds=1), log=b"step 1\n")
    rule = create_rule(session, scope, hot_gpu_rule(), now=now)
    receiver, _secret = create_receiver(
        session,
        scope,
        name="On call",
        kind=ReceiverKind.EMAIL,
        target="x@acme.example",
        box=BOX,
        now=now,
    )
    alert = Alert(
        rule_id=rule.id,
        tenant_id=cast.acme.id,
        group_key="appliance",
        tags={"appliance": appliance.id, "gpu": "0"},
        state=AlertState.FIRING,
        severity=Severity.CRITICAL,
        value=91.5,
        active_since_at=now,
        fired_at=now,
        observed_at=now,
        updated_at=now,
    )
    session.add(alert)
    template = save_template(
        session,
        scope_of(cast.bob),
        TemplateRequest(name="tune", job=JobRequest(name="tune", image="acme/tune:3")),
        now=now,
    )
    dashboard = create_dashboard(
        session,
        scope_of(cast.bob),
        DashboardRequest(name="Training", is_shared=True, panels=[POWER]),
        now=now,
    )
    view = create_view(
        session,
        scope_of(cast.bob),
        ViewRequest(name="Today", address="/dashboards/?range=24h", is_shared=True),
        now=now,
    )
    planned = ScheduleRequest(
        name="nightly", schedule="0 2 * * *", job=JobRequest(name="eval", image="acme/eval:1")
    )
    schedule = create_schedule(session, scope_of(cast.bob), planned, box=BOX, now=now)
    monthly = SavedReportRequest(
        name="monthly",
        kind=ReportKind.JOBS,
        by=ReportBy.USER,
        period=ReportPeriod.LAST_MONTH,
        schedule="0 7 1 * *",
        recipients=[cast.alice.email, cast.bob.email],
    )
    saved_report = create_saved(session, scope_of(cast.bob), monthly, now=now)
    image = add_image(session, cast.acme.id, "acme/train", now=now)
    silence = create_silence(
        session,
        scope,
        SilenceRequest(matchers=["mount=/"], starts_at=now, ends_at=now + timedelta(hours=1)),
        now=now,
    )
    enrollment_token, _ = create_enrollment_token(
        session, scope, lifetime=timedelta(days=1), now=now
    )
    write_token, _ = create_write_token(session, scope, lifetime=timedelta(days=1), now=now)
    certificate = make_certificate(session, appliance, now=now)
    token, _ = create_api_token(session, scope, name="laptop", now=now)
    invitation, _ = invite(
        session, scope, tenant_id=cast.acme.id, email="dan@example.com", role=Role.MEMBER, now=now
    )
    start_session(session, cast.bob, now=now, lifetime=timedelta(days=1))
    message = Notification(
        tenant_id=cast.acme.id,
        receiver_id=receiver.id,
        state=NotificationState.FAILED,
        tries=9,
        next_try_at=now,
        created_at=now,
        last_error="refused",
    )
    removal = TenantRemoval(
        tenant_id=new_id(),
        tenant_slug="gone",
        tenant_name="Gone",
        state=RemovalState.REMOVED,
        requested_by="olivia@vedette.example",
        requested_at=now,
    )
    platform_rule = PlatformRule(
        name="Platform's",
        expression="max(custom.x_watts) over 5m > 1",
        is_enabled=False,
        created_at=now,
    )
    access_point = AccessPoint(
        name="frankfurt",
        url="https://fra.portal.example",
        secret_hash=hash_secret("vdr_frankfurt"),
        created_at=now,
    )
    window = create_window(
        session,
        scope_of(cast.bob),
        WindowRequest(
            name="Updates", matchers=["mount=/"], schedule="0 22 * * 0", duration_seconds=3600
        ),
        now=now,
    )
    reservation = create_reservation(
        session,
        scope,
        ReservationRequest(
            name="Weekly service",
            appliance_ids=[appliance.id],
            schedule="0 22 * * 0",
            duration_seconds=3600,
        ),
        now=now,
    )
    budget = create_budget(
        session, scope, BudgetRequest(target=BudgetTarget.TENANT, amount="1000"), now=now
    )
    shared = PolicyRequest(
        name="Shared", mode=PartitionMode.MPS, shares=4, labels={"pool": "shared"}
    )
    policy = create_policy(session, scope, shared, now=now)
    forward = create_forward(
        session,
        scope,
        ForwardRequest(name="Loki", kind=ForwardKind.LOKI, url="https://loki.acme.example"),
        box=BOX,
        now=now,
    )
    project = create_project(session, scope, ProjectRequest(name="vision"), now=now)
    set_member(session, scope, project.id, cast.bob.id, is_default=False)
    rollout = start_rollout(
        session, scope, RolloutRequest(), packages=AgentPackages("9.0.0", "0" * 64), now=now
    )
    recording = Recording(
        appliances=[RecordedAppliance(name="dgx-01", cpus=8, memory_bytes=2**30)],
        jobs=[RecordedJob(submitted_seconds=0, run_seconds=9, project=1)],
    )
    today = replay(Scenario(name="today", recording=recording), lambda _part: None)
    simulation = Simulation(
        tenant_id=cast.acme.id,
        since=now - timedelta(days=30),
        until=now,
        changes=msgspec.to_builtins(Changes(policies=("best_fit",))),
        state=SimulationState.SUCCEEDED,
        created_at=now,
        finished_at=now,
        results=msgspec.json.encode(
            Comparison(projects={1: "vision"}, scenarios=[("today", today)])
        ).decode(),
    )
    connection = create_connection(
        session,
        scope,
        ConnectionRequest(name="minio", url="s3://acme-data"),
        box=BOX,
        now=now,
    )
    dataset = create_dataset(session, scope, DatasetRequest(name="images"), now=now)
    version = create_version(session, scope, dataset.id, VersionRequest(), now=now)
    version.state = VersionState.READY
    version.head = {"file_count": 0, "total_bytes": 0, "pages": []}
    session.add_all([message, removal, platform_rule, access_point, simulation])
    session.flush()
    offer, contract = _add_market(session, cast, now=now)
    prefetch = create_prefetch(session, scope, dataset.id, PrefetchRequest(), now=now)
    session.flush()
    browser = session.scalars(
        select(LoginSession).where(LoginSession.user_id == cast.bob.id).limit(1)
    ).one()
    return World(
        ids={
            "appliance_id": appliance.id,
            "job_id": job.id,
            "image_id": image.id,
            "rule_id": rule.id,
            "receiver_id": receiver.id,
            "alert_id": alert.id,
            "silence_id": silence.id,
            "window_id": window.id,
            "reservation_id": reservation.id,
            "budget_id": budget.id,
            "policy_id": policy.id,
            "simulation_id": simulation.id,
            "forward_id": forward.id,
            "project_id": project.id,
            "rollout_id": rollout.id,
            "access_point_id": access_point.id,
            "platform_rule_id": platform_rule.id,
            "template_id": template.id,
            "dashboard_id": dashboard.id,
            "view_id": view.id,
            "schedule_id": schedule.id,
            "saved_report_id": saved_report.id,
            "token_id": token.id,
            "enrollment_token_id": enrollment_token.id,
            "write_token_id": write_token.id,
            "certificate_id": certificate.id,
            "tenant_id": cast.acme.id,
            "user_id": cast.bob.id,
            "invitation_id": invitation.id,
            "session_id": browser.id,
            "notification_id": message.id,
            "removal_id": removal.id,
            "dataset_id": dataset.id,
            "prefetch_id": prefetch.id,
            "version_id": version.id,
            "connection_id": connection.id,
            "offer_id": offer.id,
            "contract_id": contract.id,
            **_ticket_ids(session, cast, now=now),
            "appeal_id": add_appeal(session, cast, now=now).id,
            "price_list_id": add_price_list(session, cast, now=now).id,
            "document_id": add_document(session, cast, now=now).id,
            "dismissal_id": add_advice(session, cast, now=now).id,
        }
    )


def _add_market(session: Session, cast: Cast, *, now: datetime) -> tuple[Offer, Contract]:
    """Add an offer that acme drafts, and a contract of acme with a provider."""
    olivia = scope_of(cast.olivia)
    for tenant in (cast.acme, cast.globex):
        for side in Side:
            admit(session, olivia, tenant.id, side, AccountState.ACTIVE, now=now)
    terms = Terms(currency="EUR", price=Decimal(2))
    request = OfferRequest(name="H100s in Oslo", terms=terms, appliance_ids=["dgx-01"])
    offer = create_offer(session, scope_of(cast.alice), request, now=now)
    dgx = session.scalars(select(Appliance.id).where(Appliance.name == "dgx-01")).one()
    begin(session, cast.acme.id, [dgx], now=now)
    contract = Contract(
        offer_id=new_id(),
        offer_name="A100s in Bergen",
        provider_id=new_id(),
        provider_name="Initech",
        customer_id=cast.acme.id,
        customer_name="Acme",
        state=ContractState.PROPOSED,
        created_at=now,
    )
    add_version(contract, terms, Side.PROVIDER, email="dave@initech.example", now=now)
    session.add(contract)
    session.flush()
    return offer, contract


def _ticket_ids(session: Session, cast: Cast, *, now: datetime) -> dict[str, str]:
    """Add a ticket of bob's, with a file."""
    ticket = create_ticket(
        session,
        scope_of(cast.bob),
        TicketRequest(title="Jobs stop", text="After a minute."),
        desk=Desk(ServerSettings()),
        files=[File("log.txt", b"stopped")],
        now=now,
    )
    statement = select(TicketAttachment).where(TicketAttachment.ticket_id == ticket.id)
    return {"ticket_id": ticket.id, "attachment_id": session.scalars(statement).one().id}
