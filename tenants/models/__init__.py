"""The tables of tenants and people, of how they sign in, of appliances, certificates and audit."""

from tenants.models.appliances import (
    Appliance,
    ApplianceEvent,
    ApplianceState,
    EnrolmentToken,
    FleetOutage,
    HealthState,
    class_told,
    gpus_told,
)
from tenants.models.audit import PLATFORM_CHAIN, AuditEntry, AuditHead
from tenants.models.certificates import ApplianceCertificate, CertificateAuthority, RollRevision
from tenants.models.columns import SECRET_HASH_LENGTH, enum_column
from tenants.models.people import Membership, Role, Tenant, TenantQuota, TenantState, User
from tenants.models.platform import (
    FillingQuota,
    QuotaWarning,
    RemovalState,
    SeriesCount,
    TenantRemoval,
    TenantUsage,
)
from tenants.models.signin import (
    APIToken,
    IdempotencyKey,
    Invitation,
    LoginSession,
    OIDCIdentity,
    PasswordReset,
    RecoveryCode,
    SupportVisit,
    Throttle,
    ThrottleKind,
)

__all__ = [
    "PLATFORM_CHAIN",
    "SECRET_HASH_LENGTH",
    "APIToken",
    "Appliance",
    "ApplianceCertificate",
    "ApplianceEvent",
    "ApplianceState",
    "AuditEntry",
    "AuditHead",
    "CertificateAuthority",
    "EnrolmentToken",
    "FillingQuota",
    "FleetOutage",
    "HealthState",
    "IdempotencyKey",
    "Invitation",
    "LoginSession",
    "Membership",
    "OIDCIdentity",
    "PasswordReset",
    "QuotaWarning",
    "RecoveryCode",
    "RemovalState",
    "Role",
    "RollRevision",
    "SeriesCount",
    "SupportVisit",
    "Tenant",
    "TenantQuota",
    "TenantRemoval",
    "TenantState",
    "TenantUsage",
    "Throttle",
    "ThrottleKind",
    "User",
    "class_told",
    "enum_column",
    "gpus_told",
]
