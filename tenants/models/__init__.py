"""All tables of tenants: tenants, users, sign-in, appliances, certificates, audit, platform."""

from tenants.models.appliances import (
    Appliance,
    ApplianceEvent,
    ApplianceState,
    EnrollmentToken,
    FleetOutage,
    LateSamples,
    TunnelHolder,
    WriteToken,
    decode_inventory,
    reported_class,
    reported_gpus,
)
from tenants.models.audit import PLATFORM_CHAIN, AuditEntry, AuditHead
from tenants.models.certificates import (
    AgentRegistryRevision,
    ApplianceCertificate,
    CertificateAuthority,
)
from tenants.models.columns import SECRET_HASH_LENGTH, enum_column
from tenants.models.platform import (
    AccessPoint,
    BackupKind,
    BackupRun,
    BackupState,
    FillingQuota,
    MessageCount,
    QuotaWarning,
    RemovalState,
    SeriesCount,
    ServerProcess,
    TenantRemoval,
    TenantUsage,
)
from tenants.models.rentals import Grant, OfferedAppliance, is_rented_name, rented_name
from tenants.models.rollouts import (
    AgentRollout,
    ApplianceUpdate,
    ApplianceUpdateState,
    RolloutState,
)
from tenants.models.signin import (
    APIToken,
    IdempotencyKey,
    Invitation,
    LoginSession,
    OIDCIdentity,
    PasswordReset,
    RecoveryCode,
    SupportSession,
    Throttle,
    ThrottleKind,
    UsedTicket,
)
from tenants.models.users import Membership, Role, Tenant, TenantQuota, TenantState, User
from tenants.models.verification import (
    Challenge,
    ChallengeOutcome,
    ComplianceNotice,
    HardwareIdentity,
    IdentityKind,
    Verification,
    VerificationState,
)
