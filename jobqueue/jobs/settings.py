"""The settings of a tenant's jobs: placement, the host paths that they may use, their confinement.

A *data root* is a folder of the appliances that jobs may mount. A read-only root offers the folders
in it, too. A writable one is only mounted as a whole: a job could leave a symbolic link in it, and
mounting what that points to would leave the root. For the same reason roots don't overlap.

An admin chooses the *container policies* that jobs may use, and the default. A job stores its
policy when it is submitted, and keeps it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from jobqueue.fairshare.settings import OrderSettings
from jobqueue.models import (
    DEFAULT_FETCH_MINUTES,
    Attempt,
    Job,
    TenantContainerPolicies,
    TenantQueueSettings,
)
from jobqueue.partitions.isolation import IsolationRules
from jobqueue.placement.policies import DEFAULT_POLICY, POLICY_NAMES
from jobqueue.states import ALLOCATED_STATES
from protocol.gpu_slices import PartitionMode
from protocol.job_spec import ContainerPolicy, Mount
from tenants.fleet.appliances import bump_generations
from tenants.permissions import Permission
from tenants.scope import Scope
from tenants.tenants import get_tenant

_OF_GANGS = ("allows_gang_egress", "encrypts_gang_networks")
MAX_ROOTS = 20
MAX_PATH_LENGTH = 300
MAX_COUNT = 2**31 - 1
MAX_DAYS = 3650
MAX_FETCH_MINUTES = 30 * 24 * 60
# Containers must never see these paths, as a whole or in part.
FORBIDDEN = ("/", "/proc", "/sys", "/dev", "/etc", "/boot", "/root", "/run", "/var/run", "/var/lib")
DESCRIPTIONS = {
    ContainerPolicy.RESTRICTED: "Root in the container has no capabilities. Most images run.",
    ContainerPolicy.STANDARD: "Root can change owners and users, as images of servers and "
    "apt-get need.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRoot:
    """A folder of the appliances that jobs may mount."""

    path: str
    is_read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """The settings of a tenant; None is unlimited.

    Attributes:
        job_retention_days: after which ended jobs are deleted; the portal's setting is the most,
            and applies for None.
        ordering: which job is next.
        isolation_between_users: the weakest mode in which jobs of different users share a GPU;
            None is the default of `jobqueue.partitions.isolation`.
        isolation_between_projects: likewise, of different projects.
        allows_gang_egress: whether members of gangs with a private network also reach the outside.
        allows_host_network: whether jobs may use the appliance's network and RDMA devices.
        encrypts_gang_networks: whether gangs' packets are encrypted within a site, too.
        longest_fetch_minutes: a job whose data takes longer to fetch waits for it without GPUs.
    """

    placement_policy: str = DEFAULT_POLICY
    max_gpus_per_user: int | None = None
    max_gpus: int | None = None
    allows_preemption: bool = False
    data_roots: Sequence[DataRoot] = field(default_factory=tuple)
    job_retention_days: int | None = None
    ordering: OrderSettings = field(default_factory=OrderSettings)
    isolation_between_users: PartitionMode | None = None
    isolation_between_projects: PartitionMode | None = None
    allows_gang_egress: bool = False
    allows_host_network: bool = False
    encrypts_gang_networks: bool = False
    longest_fetch_minutes: int = DEFAULT_FETCH_MINUTES

    @property
    def isolation(self) -> IsolationRules:
        """Return which jobs may share a GPU."""
        return IsolationRules(
            between_users=self.isolation_between_users,
            between_projects=self.isolation_between_projects,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChoice:
    """The policies that a tenant's jobs may use; without a choice, only the most confined one."""

    allowed: Sequence[ContainerPolicy] = (ContainerPolicy.RESTRICTED,)
    default: ContainerPolicy = ContainerPolicy.RESTRICTED


def read_settings(session: Session, scope: Scope, tenant_id: str) -> QueueSettings:
    """Return the settings of a tenant in the scope."""
    return settings_of(session, get_tenant(session, scope, tenant_id).id)


def settings_of(session: Session, tenant_id: str) -> QueueSettings:
    """Return the settings of a tenant."""
    row = session.get(TenantQueueSettings, tenant_id)
    if row is None:
        return QueueSettings()
    stored = {name: getattr(row, name) for name in QueueSettings.__dataclass_fields__}
    return msgspec.convert({**stored, "ordering": row.ordering or {}}, QueueSettings)


def set_settings(
    session: Session, scope: Scope, tenant_id: str, settings: QueueSettings
) -> QueueSettings:
    """Set the settings of a tenant; they apply from the next placement.

    Raises:
        InvalidInputError: names every invalid field.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    get_tenant(session, scope, tenant_id)
    errors: dict[str, list[str]] = {}
    for name, error in _errors(settings):
        errors.setdefault(name, []).append(error)
    if errors:
        details = " ".join(error for of_field in errors.values() for error in of_field)
        raise InvalidInputError(f"The queue settings were not changed. {details}", errors=errors)
    row = session.get(TenantQueueSettings, tenant_id)
    if row is None:
        row = TenantQueueSettings(tenant_id=tenant_id)
        session.add(row)
    had = [getattr(row, name) for name in _OF_GANGS]
    for name, value in asdict(settings).items():
        setattr(row, name, list(value) if name == "data_roots" else value)
    session.flush()
    if had != [getattr(row, name) for name in _OF_GANGS]:
        _renew_orders_of_gangs(session, tenant_id)
    return settings


def mount_errors(mounts: Sequence[Mount], roots: Sequence[DataRoot]) -> Iterator[str]:
    """Yield why data paths of a job are invalid, or not allowed by the tenant."""
    targets = [mount.target for mount in mounts]
    for mount in mounts:
        source, target = mount.source, mount.target
        if not is_clean_path(source) or not is_clean_path(target) or target == "/":
            yield (
                f"{source!r} at {target!r}: enter absolute paths without '..', such as "
                "'/data/images' at '/data'."
            )
            continue
        if targets.count(target) > 1:
            yield f"{target!r} is mounted twice; use different paths in the container."
        root = next((data_root for data_root in roots if _is_in(source, data_root.path)), None)
        if root is None:
            allowed = ", ".join(data_root.path for data_root in roots) or "none"
            yield (
                f"{source!r} is not in a data root of this tenant ({allowed}). An admin can add "
                "one in the queue settings."
            )
        elif root.is_read_only and not mount.is_read_only:
            yield f"{source!r} is in the read-only data root {root.path!r}; mount it read-only."
        elif not root.is_read_only and source != root.path:
            yield f"The writable data root {root.path!r} is mounted only as a whole."


def is_clean_path(path: str) -> bool:
    """Return whether a path is absolute, printable, and without `..` or needless parts."""
    parts = PurePosixPath(path)
    return (
        parts.is_absolute()
        and len(path) <= MAX_PATH_LENGTH
        and path.isprintable()
        and str(parts) == path
        and ".." not in parts.parts
        and not path.startswith("//")
    )


def read_policies(session: Session, scope: Scope, tenant_id: str) -> PolicyChoice:
    """Return the policies of a tenant in the scope."""
    return policies_of(session, get_tenant(session, scope, tenant_id).id)


def set_policies(
    session: Session, scope: Scope, tenant_id: str, choice: PolicyChoice
) -> PolicyChoice:
    """Set the policies of a tenant in the scope; jobs that were submitted before keep theirs.

    Raises:
        InvalidInputError: no policy is allowed, or the default is not.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    get_tenant(session, scope, tenant_id)
    allowed = [policy for policy in ContainerPolicy if policy in choice.allowed]
    if not allowed:
        raise _invalid("allowed", "Allow at least one container policy.")
    if choice.default not in allowed:
        raise _invalid(
            "default",
            f"The default {choice.default.value!r} is not allowed. Allow it, or choose another.",
        )
    row = session.get(TenantContainerPolicies, tenant_id)
    if row is None:
        row = TenantContainerPolicies(tenant_id=tenant_id)
        session.add(row)
    row.allowed, row.default = [policy.value for policy in allowed], choice.default
    session.flush()
    return PolicyChoice(allowed=allowed, default=choice.default)


def policies_of(session: Session, tenant_id: str) -> PolicyChoice:
    """Return the policies of a tenant."""
    row = session.get(TenantContainerPolicies, tenant_id)
    if row is None:
        return PolicyChoice()
    return PolicyChoice(
        allowed=[ContainerPolicy(name) for name in row.allowed], default=row.default
    )


def policy_for_job(session: Session, tenant_id: str, wanted: str | None) -> ContainerPolicy:
    """Return the policy of a new job; None is the tenant's default.

    Raises:
        InvalidInputError: the tenant's jobs may not use it.
    """
    choice = policies_of(session, tenant_id)
    if wanted is None:
        return choice.default
    if wanted in choice.allowed:
        return ContainerPolicy(wanted)
    names = ", ".join(policy.value for policy in choice.allowed)
    raise _invalid(
        "container_policy",
        f"Jobs of this tenant may not use the container policy {wanted!r}, only: {names}. An admin "
        "can change this.",
    )


def _renew_orders_of_gangs(session: Session, tenant_id: str) -> None:
    """Let all appliances of running gangs fetch their orders: packets are encrypted by both sides
    or by neither."""
    members = (
        select(Attempt.appliance_id)
        .join(Job, Job.id == Attempt.job_id)
        .where(Job.tenant_id == tenant_id, Job.nodes > 1, Attempt.state.in_(ALLOCATED_STATES))
    )
    bump_generations(session, set(session.scalars(members)))


def _errors(settings: QueueSettings) -> Iterator[tuple[str, str]]:
    if settings.placement_policy not in POLICY_NAMES:
        names = ", ".join(POLICY_NAMES)
        yield "placement_policy", f"{settings.placement_policy!r} is not one of: {names}."
    for name in ("max_gpus_per_user", "max_gpus"):
        value = getattr(settings, name)
        if value is not None and not 0 <= value <= MAX_COUNT:
            yield name, f"{name} is {value}; enter 0 or more, or leave it empty for no limit."
    days = settings.job_retention_days
    if days is not None and not 1 <= days <= MAX_DAYS:
        yield (
            "job_retention_days",
            f"job_retention_days is {days}; enter 1 to {MAX_DAYS}, or leave it empty.",
        )
    minutes = settings.longest_fetch_minutes
    if not 0 <= minutes <= MAX_FETCH_MINUTES:
        yield (
            "longest_fetch_minutes",
            f"longest_fetch_minutes is {minutes}; enter 0 to {MAX_FETCH_MINUTES}.",
        )
    for name, error in settings.ordering.errors():
        yield f"ordering.{name}", error
    yield from _root_errors([root.path for root in settings.data_roots])


def _root_errors(roots: Sequence[str]) -> Iterator[tuple[str, str]]:
    if len(roots) > MAX_ROOTS:
        yield "data_roots", f"There are {len(roots)} data roots; use at most {MAX_ROOTS}."
    for place, path in enumerate(roots):
        if not is_clean_path(path):
            yield "data_roots", f"{path!r} is not an absolute path without '..'."
        elif path == "/" or any(
            _is_in(path, folder) or _is_in(folder, path) for folder in FORBIDDEN if folder != "/"
        ):
            yield "data_roots", f"{path!r} belongs to the system; choose a folder for data."
        for other in roots[:place]:
            if _is_in(path, other) or _is_in(other, path):
                yield "data_roots", f"{other!r} and {path!r} overlap; remove one."


def _is_in(path: str, root: str) -> bool:
    return PurePosixPath(path).is_relative_to(root)


def _invalid(field: str, message: str) -> InvalidInputError:
    return InvalidInputError(message, errors={field: [message]})
