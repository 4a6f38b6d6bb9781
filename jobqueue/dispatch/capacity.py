"""Free resources of appliances, for users who choose one for a job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.paging import DEFAULT_PAGE_SIZE, Page
from jobqueue.dispatch.usable_appliances import tenant_views
from jobqueue.partitions.allocations import GPUSite, Occupancy, SegmentKind, read_gpu_allocations
from jobqueue.placement.clusters import ClusterView
from jobqueue.placement.views import ApplianceView
from tenants.fleet.appliances import ApplianceFilter, Nodes, list_appliances
from tenants.models import Appliance, ApplianceState
from tenants.models.appliances import decode_inventory
from tenants.permissions import Permission
from tenants.scope import Scope


@dataclass(frozen=True, slots=True)
class Capacity:
    """An appliance with its GPUs: all, those that jobs can use, and of these the free ones.

    `shared_gpus` are those that can be used in slices. Of their `slots`, which are shares under MPS
    and time slicing, `free_slots` have no job.
    """

    appliance_id: str
    name: str
    gpus: int
    usable_gpus: int
    free_gpus: int
    state: ApplianceState
    is_drained: bool
    is_quarantined: bool = False
    shared_gpus: int = 0
    slots: int = 0
    free_slots: int = 0

    @property
    def summary(self) -> str:
        """Such as `3 of 8 usable GPUs free, drained`."""
        facts = [f"{self.free_gpus} of {self.usable_gpus} usable GPUs free"]
        facts = facts if self.gpus else ["no GPUs"]
        if self.shared_gpus:
            facts.append(
                f"{self.shared_gpus} in slices, {self.free_slots} of {self.slots} slots free"
            )
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
    tenant_id, wanted = scope.require_tenant(), ApplianceFilter(search=search, nodes=Nodes.WITHOUT)
    appliances = list_appliances(session, scope, wanted, page=page, page_size=page_size)
    idents = [appliance.id for appliance in appliances.items]
    shared = _occupancies(session, scope, idents)
    views = tenant_views(session, tenant_id, only=idents)
    return appliances.of(
        [_capacity(view, shared) for view in sorted(views, key=lambda view: view.name)]
    )


def _occupancies(
    session: Session, scope: Scope, idents: Sequence[str]
) -> dict[tuple[str, str], Occupancy]:
    """Return who has what of the GPUs that jobs share, by appliance and UUID."""
    allocations = read_gpu_allocations(session, scope)
    columns = (Appliance.id, Appliance.tenant_id, Appliance.labels, Appliance.inventory)
    rows = session.execute(select(*columns).where(Appliance.id.in_(idents)))
    occupancies = {}
    for ident, tenant_id, labels, stored in rows:
        inventory = decode_inventory(stored)
        site = GPUSite(tenant_id, labels, inventory.partition_modes)
        for gpu in inventory.gpus:
            if occupancy := allocations.occupancy(gpu, site):
                occupancies[ident, gpu.uuid] = occupancy
    return occupancies


def _of_cluster(view: ApplianceView, cluster: ClusterView) -> Capacity:
    """Return what the nodes of a cluster have; free GPUs are those that no user's job has."""
    is_up = cluster.is_up
    return Capacity(
        view.id,
        view.name,
        int(cluster.gpus.sum()),
        int(cluster.gpus[is_up].sum()),
        int(np.maximum(cluster.free_gpus[is_up], 0).sum()),
        view.state,
        view.is_drained,
    )


def _capacity(view: ApplianceView, shared: Mapping[tuple[str, str], Occupancy]) -> Capacity:
    if view.cluster is not None:
        return _of_cluster(view, view.cluster)
    taken = {uuid for running in view.running for uuid in running.gpu_uuids}
    usable = [gpu for gpu in view.gpus if not gpu.is_failed and not view.failure]
    cut = [shared[view.id, gpu.uuid] for gpu in usable if (view.id, gpu.uuid) in shared]
    free = sum(
        gpu.uuid not in taken and not gpu.is_used_outside and (view.id, gpu.uuid) not in shared
        for gpu in usable
    )
    return Capacity(
        view.id,
        view.name,
        len(view.gpus),
        len(usable),
        free,
        view.state,
        view.is_drained,
        bool(view.quarantine),
        len(cut),
        sum(occupancy.slots for occupancy in cut),
        sum(occupancy.slots_with(SegmentKind.FREE, SegmentKind.IDLE) for occupancy in cut),
    )
