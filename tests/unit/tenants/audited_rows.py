"""A row of every audited model."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

from alerting.models import (
    MaintenanceWindow,
    NotificationPolicy,
    PlatformRule,
    Receiver,
    Rule,
    Silence,
)
from alerting.states import Comparison, ReceiverKind
from core.ids import new_id
from dash_app.custom.models import CustomDashboard
from dash_app.reports.models import ReportPeriod, SavedReport
from dash_app.reports.report import FileFormat, ReportBy, ReportKind
from datasets.models import (
    DataConnection,
    Dataset,
    DatasetPrefetch,
    DatasetVersion,
    TenantDataSettings,
    VersionState,
)
from jobqueue.advice.models import AdviceDismissal
from jobqueue.models import (
    Job,
    JobSchedule,
    JobTemplate,
    TenantContainerPolicies,
    TenantQueueSettings,
)
from jobqueue.partitions.models import GPUPartitionPolicy
from jobqueue.projects.models import Project, ProjectMember, ProjectQuota, QuotaResource
from jobqueue.reservations.models import Reservation
from jobqueue.simulation.models import Simulation
from jobqueue.states import JobState, Missed, Overlap
from jobqueue.storage.models import CleanupPolicies
from logs.models import ForwardKind, LogForward
from marketplace import states
from marketplace.budgets.models import Budget, BudgetAction, BudgetTarget
from marketplace.charges.models import PrepaidEntry
from marketplace.consequences.models import PolicyVersion
from marketplace.invoices.models import BillingDocument, DocumentKind
from marketplace.models import Account, Contract, ContractVersion, Offer
from marketplace.prices.models import PriceList
from marketplace.reputation.models import Rating
from marketplace.states import ContractState, Side
from protocol.datasets import SourceKind
from protocol.gpu_slices import PartitionMode
from protocol.job_spec import ContainerPolicy, JobKind
from protocol.lines import LogLevel
from tenants.models import (
    AccessPoint,
    AgentRollout,
    APIToken,
    Appliance,
    ApplianceCertificate,
    CertificateAuthority,
    EnrollmentToken,
    Invitation,
    Membership,
    OIDCIdentity,
    Role,
    RolloutState,
    Tenant,
    TenantQuota,
    TenantState,
    User,
    WriteToken,
)
from tests.cast import NOON, Cast

LATER = NOON + timedelta(days=1)


def one_of_each(cast: Cast, appliance: Appliance) -> list[Any]:
    """Return a row of every audited model, in an order in which they can be made."""
    tenant = {"tenant_id": cast.acme.id}
    secret = iter(f"{number:064}" for number in range(100))
    project = Project(**tenant, id=new_id(), name="vision", created_at=NOON)
    dataset = Dataset(**tenant, id=new_id(), name="images", kind=SourceKind.UPLOAD, created_at=NOON)
    authority = CertificateAuthority(
        id=new_id(), certificate="pem", private_key="pem", not_before=NOON, not_after=LATER
    )
    contract = Contract(
        id=new_id(),
        offer_id=new_id(),
        offer_name="H100s",
        provider_id=cast.acme.id,
        provider_name="Acme",
        customer_id=cast.globex.id,
        customer_name="Globex",
        state=ContractState.PROPOSED,
        created_at=NOON,
    )
    return [
        Tenant(slug="initech", name="Initech", state=TenantState.ACTIVE, created_at=NOON),
        User(email="dora@acme.example", name="Dora", password_hash="x", created_at=NOON),
        Membership(
            user_id=cast.charlie.id, tenant_id=cast.acme.id, role=Role.VIEWER, created_at=NOON
        ),
        TenantQuota(**tenant, max_gpus=8),
        TenantContainerPolicies(
            **tenant, allowed=["restricted"], default=ContainerPolicy.RESTRICTED
        ),
        TenantQueueSettings(
            **tenant, placement_policy="first_free", allows_preemption=False, data_roots=[]
        ),
        CleanupPolicies(**tenant, policies={"": {"image_days": 9}}),
        APIToken(
            **tenant, user_id=cast.bob.id, name="ci", secret_hash=next(secret), created_at=NOON
        ),
        Invitation(
            **tenant,
            email="erin@acme.example",
            role=Role.MEMBER,
            secret_hash=next(secret),
            created_at=NOON,
            expires_at=LATER,
        ),
        OIDCIdentity(user_id=cast.bob.id, issuer="https://id", subject="bob", created_at=NOON),
        NotificationPolicy(**tenant, root={"receivers": ["ops"]}, updated_at=NOON),
        PlatformRule(name="hot", expression="max(gpu.x) over 5m > 1", created_at=NOON),
        Silence(**tenant, matchers=["gpu=0"], starts_at=NOON, ends_at=LATER, created_at=NOON),
        LogForward(
            **tenant,
            name="Loki",
            kind=ForwardKind.LOKI,
            url="https://loki.example/",
            sources=["job"],
            minimum_level=LogLevel.INFO,
            next_try_at=NOON,
            created_at=NOON,
        ),
        MaintenanceWindow(
            **tenant,
            name="updates",
            matchers=["gpu=0"],
            schedule="0 22 * * 0",
            time_zone="UTC",
            duration_seconds=3600.0,
            created_at=NOON,
        ),
        EnrollmentToken(
            **tenant,
            name="rack 4",
            secret_hash=next(secret),
            uses_left=1,
            created_at=NOON,
            expires_at=LATER,
        ),
        WriteToken(
            **tenant,
            name="rack 4",
            appliance_pattern="*",
            secret_hash=next(secret),
            created_at=NOON,
            expires_at=LATER,
        ),
        Appliance(
            **tenant,
            name="gpu-09",
            state=appliance.state,
            secret_hash=next(secret),
            enrolled_at=NOON,
        ),
        AccessPoint(
            **tenant,
            name="frankfurt",
            url="https://fra.portal.example",
            secret_hash=next(secret),
            created_at=NOON,
        ),
        AgentRollout(
            **tenant,
            version="1.1.0",
            requirements_sha256="0" * 64,
            sites=[],
            stage_percents=[100],
            soak_seconds=0,
            max_failures=0,
            state=RolloutState.RUNNING,
            created_at=NOON,
        ),
        authority,
        ApplianceCertificate(
            **tenant,
            appliance_id=appliance.id,
            authority_id=authority.id,
            serial="01",
            fingerprint="02",
            not_before=NOON,
            not_after=LATER,
            issued_at=NOON,
        ),
        Receiver(
            **tenant,
            name="hook",
            kind=ReceiverKind.WEBHOOK,
            target="https://h",
            secret="s3cr3t",
            created_at=NOON,
        ),
        Rule(
            **tenant,
            name="hot",
            measurement="gpu",
            field="x",
            aggregate="avg",
            window_seconds=60,
            comparison=Comparison.ABOVE,
            warning_threshold=1.0,
            created_at=NOON,
        ),
        Job(
            **tenant,
            name="train",
            kind=JobKind.BATCH,
            image="i",
            memory_bytes=1,
            state=JobState.QUEUED,
            submitted_at=NOON,
            queue_at=NOON,
        ),
        project,
        Reservation(
            **tenant,
            name="nightly",
            appliance_ids=[],
            schedule="0 22 * * *",
            time_zone="UTC",
            duration_seconds=3600,
            created_at=NOON,
        ),
        Budget(
            **tenant,
            target=BudgetTarget.TENANT,
            target_name="Acme",
            amount=Decimal(1000),
            action=BudgetAction.NOTIFY,
            created_at=NOON,
        ),
        GPUPartitionPolicy(**tenant, name="shared", mode=PartitionMode.MPS, created_at=NOON),
        PriceList(
            **tenant,
            owner=cast.acme.id,
            number=1,
            valid_from=NOON,
            prices=[],
            created_by="alice@acme.example",
            created_at=NOON,
        ),
        PrepaidEntry(**tenant, amount=Decimal("1.00"), source_id="x", created_at=NOON),
        PolicyVersion(number=1, document={}, created_at=NOON),
        BillingDocument(
            **tenant,
            kind=DocumentKind.INVOICE,
            month_at=NOON,
            number="INV-2026-00001",
            currency="EUR",
            issued_at=NOON,
            issuer="",
            tenant_name="Acme",
            party={},
            items=[],
            **dict.fromkeys(("net", "tax_percent", "tax", "fee_percent"), Decimal(0)),
            **dict.fromkeys(("fee", "total", "prepaid"), Decimal(0)),
        ),
        DataConnection(**tenant, name="minio", url="s3://acme", created_at=NOON),
        TenantDataSettings(**tenant),
        dataset,
        DatasetVersion(
            **tenant,
            dataset_id=dataset.id,
            number=1,
            state=VersionState.UPLOADING,
            created_at=NOON,
            active_at=NOON,
        ),
        DatasetPrefetch(**tenant, dataset_id=dataset.id, created_at=NOON),
        AdviceDismissal(
            **tenant, advice_key="short:H100", dismissed_at=NOON, dismissed_until=LATER
        ),
        Simulation(**tenant, since=NOON, until=LATER, changes={}, created_at=NOON),
        ProjectMember(**tenant, project_id=project.id, user_id=cast.bob.id),
        ProjectQuota(**tenant, project_id=project.id, resource=QuotaResource.GPUS, guaranteed=4),
        JobTemplate(
            **tenant, name="train", description="", request={}, created_at=NOON, updated_at=NOON
        ),
        CustomDashboard(
            **tenant,
            name="Training",
            description="",
            is_shared=True,
            panels=[],
            created_at=NOON,
            updated_at=NOON,
        ),
        JobSchedule(
            **tenant,
            name="nightly",
            schedule="0 2 * * *",
            time_zone="UTC",
            overlap=Overlap.SKIP,
            missed=Missed.SKIP,
            request={},
            created_at=NOON,
        ),
        SavedReport(
            **tenant,
            user_id=cast.bob.id,
            name="monthly",
            kind=ReportKind.JOBS,
            by=ReportBy.USER,
            period=ReportPeriod.LAST_MONTH,
            time_zone="UTC",
            appliances="",
            price_per_kilowatt_hour=0.0,
            target_percent=99.0,
            schedule="",
            file_format=FileFormat.PDF,
            is_enabled=True,
            created_at=NOON,
        ),
        Account(**tenant, public_name="Acme Compute", updated_at=NOON),
        Offer(**tenant, name="H100s", terms={}, created_at=NOON, updated_at=NOON),
        contract,
        ContractVersion(
            contract_id=contract.id,
            number=1,
            state=states.VersionState.PROPOSED,
            terms={},
            terms_hash="0" * 64,
            proposed_side=Side.CUSTOMER,
            proposed_by=cast.alice.email,
            proposed_at=NOON,
        ),
        Rating(
            **tenant,
            contract_id=contract.id,
            provider_id=cast.globex.id,
            month="2026-03",
            stars=4,
            created_by=cast.alice.email,
            created_at=NOON,
            updated_at=NOON,
        ),
    ]
