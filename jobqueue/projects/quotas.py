"""Quotas of projects: set and read; `jobqueue.placement.quotas` enforces them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from jobqueue.projects.guarantees import Guarantees, QuotaKey
from jobqueue.projects.models import (
    MAX_MODEL_WORD_LENGTH,
    Project,
    ProjectQuota,
    QuotaResource,
)
from jobqueue.projects.tree import ProjectTree
from tenants.fleet.states import in_service
from tenants.models import Appliance
from tenants.models.appliances import decode_inventory

MAX_QUOTAS = 50
MAX_AMOUNT = 2**60
LIMITS = ("guaranteed", "maximum", "lending_limit", "borrowing_limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRequest:
    """A quota as an admin enters it; see `ProjectQuota`. None is no limit."""

    resource: QuotaResource
    gpu_model: str = ""
    guaranteed: int = 0
    maximum: int | None = None
    lending_limit: int | None = None
    borrowing_limit: int | None = None

    @property
    def key(self) -> QuotaKey:
        """What it counts."""
        return QuotaKey(self.resource, self.gpu_model.strip())


def quotas_of(session: Session, project_id: str) -> Sequence[ProjectQuota]:
    """Return the quotas of a project, those of all GPUs first."""
    statement = select(ProjectQuota).where(ProjectQuota.project_id == project_id)
    order = list(QuotaResource)
    quotas = session.scalars(statement).unique()
    return sorted(quotas, key=lambda quota: (order.index(quota.resource), quota.gpu_model))


def replace_quotas(
    session: Session, tree: ProjectTree, project: Project, requests: Sequence[QuotaRequest]
) -> None:
    """Replace the quotas of a project, whose tree is locked.

    Raises:
        InvalidInputError: names every invalid field by its place, such as `quotas.0.maximum`; a
            guarantee that can't be kept comes with the nearest that can.
    """
    errors = quota_errors(requests)
    if errors:
        _refuse(errors)
    guarantees = {request.key: request.guaranteed for request in requests}
    problem = guarantee_problem(session, tree, project, guarantees)
    if problem is not None:
        key, sentence = problem
        places = [place for place, request in enumerate(requests) if request.key == key]
        _refuse({f"quotas.{places[0]}.guaranteed" if places else "quotas": [sentence]})
    present = {
        _folded(QuotaKey(row.resource, row.gpu_model)): row
        for row in quotas_of(session, project.id)
    }
    for request in requests:
        values = asdict(request) | {"gpu_model": request.key.gpu_model}
        row = present.pop(_folded(request.key), None)
        if row is None:
            row = ProjectQuota(tenant_id=project.tenant_id, project_id=project.id)
            session.add(row)
        for name, value in values.items():
            setattr(row, name, value)
    for row in present.values():
        session.delete(row)
    session.flush()


def guarantee_problem(
    session: Session,
    tree: ProjectTree,
    project: Project,
    guarantees: Mapping[QuotaKey, int] | None = None,
) -> tuple[QuotaKey, str] | None:
    """Return a guarantee of a project that can't be kept, with the reason; None if all can.

    `guarantees` are new ones of the project; None leaves what it has.
    """
    statement = select(ProjectQuota).where(ProjectQuota.tenant_id == project.tenant_id)
    by_project: dict[str, dict[QuotaKey, int]] = defaultdict(dict)
    for quota in session.scalars(statement).unique():
        key = QuotaKey(quota.resource, quota.gpu_model)
        by_project[quota.project_id][key] = quota.guaranteed
    if guarantees is not None:
        by_project[project.id] = dict(guarantees)
    if not any(by_project.values()):
        return None
    keys = {key for amounts in by_project.values() for key in amounts}
    hardware = tenant_hardware(session, project.tenant_id, {key.gpu_model for key in keys})
    return Guarantees(tree, by_project, hardware).error(project)


def tenant_hardware(
    session: Session, tenant_id: str, words: set[str] | frozenset[str] = frozenset()
) -> Mapping[QuotaKey, int]:
    """Return what the tenant's appliances in service have, and of GPUs also by words of models."""
    # Of a cluster, the nodes run the jobs, not the host of its connector.
    runs_jobs = Appliance.tenant_id == tenant_id, in_service(), Appliance.cluster_kind == ""
    statement = select(Appliance.inventory).where(*runs_jobs)
    totals: dict[QuotaKey, int] = defaultdict(int)
    for stored in session.scalars(statement):
        inventory = decode_inventory(stored)
        totals[QuotaKey(QuotaResource.CPUS)] += inventory.cpu_count
        totals[QuotaKey(QuotaResource.MEMORY_BYTES)] += inventory.memory_bytes
        for word in words | {""}:
            matching = sum(word.lower() in gpu.model.lower() for gpu in inventory.gpus)
            totals[QuotaKey(QuotaResource.GPUS, word)] += matching
    return totals


def quota_errors(requests: Sequence[QuotaRequest]) -> dict[str, list[str]]:
    """Return what is wrong with the quotas of a project, by field."""
    errors: dict[str, list[str]] = {}
    if len(requests) > MAX_QUOTAS:
        errors["quotas"] = [f"There are {len(requests)} quotas; use at most {MAX_QUOTAS}."]
    keys = [_folded(request.key) for request in requests]
    for place, request in enumerate(requests):
        field = f"quotas.{place}"
        word = request.key.gpu_model
        if len(word) > MAX_MODEL_WORD_LENGTH or not word.isprintable():
            errors[f"{field}.gpu_model"] = [f"{word[:30]!r} is not a GPU model, such as 'H100'."]
        elif word and request.resource is not QuotaResource.GPUS:
            errors[f"{field}.gpu_model"] = [f"Only gpus are by model; remove {word!r}."]
        elif keys.index(keys[place]) < place:
            errors[field] = [f"There are two quotas of {request.key.amount(2)[2:]}; remove one."]
        for name in LIMITS:
            value = getattr(request, name)
            if value is not None and not 0 <= value <= MAX_AMOUNT:
                errors[f"{field}.{name}"] = [f"{name} is {value}; enter 0 to {MAX_AMOUNT}."]
        guaranteed, maximum = request.guaranteed, request.maximum
        if maximum is not None and maximum < guaranteed:
            shown = f"less than the {guaranteed} that are guaranteed; enter at least that"
            errors.setdefault(f"{field}.maximum", []).append(f"maximum is {maximum}, {shown}.")
    return errors


def _folded(key: QuotaKey) -> QuotaKey:
    """Return a key by which H100 and h100 are the same, as they are in MySQL."""
    return key._replace(gpu_model=key.gpu_model.casefold())


def _refuse(errors: Mapping[str, Sequence[str]]) -> None:
    details = " ".join(text for texts in errors.values() for text in texts)
    raise InvalidInputError(f"The quotas were not changed. {details}", errors=errors)
