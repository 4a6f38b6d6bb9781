"""Free resources of appliances, for users who choose one for a job."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from core.paging import DEFAULT_PAGE_SIZE, Page
from jobqueue.dispatch.appliance_views import tenant_views
from jobqueue.placement.views import ApplianceView
from tenants.fleet.appliances import ApplianceFilter, list_appliances
from tenants.models import ApplianceState
from tenants.permissions import Permission
from tenants.scope import Scope


@dataclass(frozen=True, slots=True)
class Capacity:
    """An appliance with its GPUs: all, those that jobs can use, and of these the free ones."""

    appliance_id: str
    name: str
    gpus: int
    usable_gpus: int
    free_gpus: int
    state: ApplianceState
    is_drained: bool
    is_quarantined: bool = False

    @property
    def summary(self) -> str:
        """Such as `3 of 8 usable GPUs free, drained`."""
        facts = [f"{self.free_gpus} of {self.usable_gpus} usable GPUs free"]
        facts = facts if self.gpus else ["no GPUs"]
        failed = self.gpus - self.usable_gpus
        facts += [f"{failed} failed"] if failed else []
        facts += ["drained"] if self.is_drained else []
        facts += ["quarantined"] if self.is_quarantined else []
        facts += [] if self.state is ApplianceState.ONLINE else [self.state.value]
        return ", ".join(facts)


def list_capacities(
    session: Session,
    scope: Scope,
    *,
    search: str = "",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[Capacity]:
    """Return a page of the tenant's appliances in service by name, without fenced ones."""
    scope.require(Permission.SUBMIT_JOBS)
    tenant_id, wanted = scope.require_tenant(), ApplianceFilter(search=search)
    appliances = list_appliances(session, scope, wanted, page=page, page_size=page_size)
    views = tenant_views(session, tenant_id, only=[appliance.id for appliance in appliances.items])
    return appliances.of([_capacity(view) for view in sorted(views, key=lambda view: view.name)])


def _capacity(view: ApplianceView) -> Capacity:
    taken = {uuid for running in view.running for uuid in running.gpu_uuids}
    usable = [gpu for gpu in view.gpus if not gpu.is_failed and not view.failure]
    free = sum(gpu.uuid not in taken and not gpu.is_used_outside for gpu in usable)
    return Capacity(
        view.id,
        view.name,
        len(view.gpus),
        len(usable),
        free,
        view.state,
        view.is_drained,
        bool(view.quarantine),
    )
