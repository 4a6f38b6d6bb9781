"""The GPUs of a tenant as partition policies see them, and which of them each policy covers."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

import msgspec
from sqlalchemy import Text, select, type_coerce
from sqlalchemy.orm import Session

from jobqueue.models import Attempt
from jobqueue.partitions.isolation import MODE_NAMES
from jobqueue.partitions.mig import valid_profiles
from jobqueue.partitions.orders import GPU, Policy, covers, sharing_hardware
from jobqueue.rentals import on_appliances_of_tenant
from jobqueue.states import ALLOCATED_STATES
from protocol.gpu_slices import MIGProfile, PartitionMode
from tenants.fleet.appliances import ReportCache
from tenants.fleet.states import has_no_connector, in_service
from tenants.models import Appliance

Profiles = tuple[MIGProfile, ...]
MAX_LISTED = 3


class SharingAppliance(NamedTuple):
    """An appliance with its GPUs, and the modes in which its agent can share them."""

    id: str
    name: str
    labels: frozenset[tuple[str, str]]
    gpus: Sequence[GPU]
    modes: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The GPUs that a policy covers.

    Attributes:
        gpus: how many.
        busy_gpus: of these, the ones that get another mode and have jobs now.
        appliances: the names of their appliances.
        models: their models.
        warnings: sentences about what won't work, and what to do.
    """

    gpus: int
    busy_gpus: int
    appliances: Sequence[str]
    models: Sequence[str]
    warnings: Sequence[str]

    @property
    def text(self) -> str:
        """Such as `Covers 16 GPUs on 2 appliances: dgx-01, dgx-02; 3 are busy.`."""
        if not self.gpus:
            return "Covers no GPU now."
        where = f"{counted(len(self.appliances), 'appliance')}: {listed(self.appliances)}"
        are = "is busy and changes" if self.busy_gpus == 1 else "are busy and change"
        busy = f"; {self.busy_gpus} {are} once idle" if self.busy_gpus else ""
        return f"Covers {counted(self.gpus, 'GPU')} on {where}{busy}."


def read_fleet(session: Session, tenant_id: str) -> list[SharingAppliance]:
    """Return the appliances of a tenant in service, by name; nodes of clusters share no GPUs."""
    columns = (Appliance.id, Appliance.name, Appliance.report_id)
    labels = type_coerce(Appliance.labels, Text).label("labels")
    statement = select(*columns, labels).where(
        Appliance.tenant_id == tenant_id, in_service(), has_no_connector()
    )
    rows = session.execute(statement.order_by(Appliance.name, Appliance.id)).all()
    reports = _REPORTS.read(session, {row.id: row.report_id for row in rows})
    return [
        SharingAppliance(row.id, row.name, _labels(row.labels), *reports[row.id])
        for row in rows
        if row.id in reports
    ]


def gpus_in_use(session: Session, tenant_id: str) -> set[str]:
    """Return the UUIDs of a tenant's GPUs that jobs of any tenant have, wholly or in part."""
    statement = select(Attempt.gpu_uuids).where(
        Attempt.state.in_(ALLOCATED_STATES), on_appliances_of_tenant(tenant_id)
    )
    return {uuid for uuids in session.scalars(statement) for uuid in uuids}


def covered(
    fleet: Iterable[SharingAppliance], policies: Sequence[Policy]
) -> Iterator[tuple[SharingAppliance, GPU, int]]:
    """Yield each GPU with the place of the policy that covers it; -1 for a whole one."""

    @cache
    def place_of(model: str, labels: frozenset[tuple[str, str]]) -> int:
        fitting = (at for at, policy in enumerate(policies) if covers(policy, model, labels))
        return next(fitting, -1)

    for appliance in fleet:
        for gpu in appliance.gpus:
            yield appliance, gpu, place_of(gpu.model, appliance.labels)


def profiles_by_model(fleet: Iterable[SharingAppliance]) -> Mapping[str, Profiles]:
    """Return the MIG profiles of each model: a GPU whose MIG was never on reports none itself."""
    gpus = (gpu for appliance in fleet for gpu in appliance.gpus)
    return {gpu.model: gpu.mig_profiles for gpu in gpus if gpu.mig_profiles}


def coverages(
    fleet: Sequence[SharingAppliance],
    policies: Sequence[Policy],
    in_use: set[str],
    *,
    before: Sequence[Policy] | None = None,
) -> list[Coverage]:
    """Return what each policy covers; `before` are the policies that apply now, if not the same."""
    changing = changed_gpus(fleet, policies, policies if before is None else before)
    pairs: dict[int, list[tuple[SharingAppliance, GPU]]] = {}
    for appliance, gpu, place in covered(fleet, policies):
        pairs.setdefault(place, []).append((appliance, gpu))
    return [
        Coverage(
            gpus=len(own),
            busy_gpus=sum(gpu.uuid in changing and gpu.uuid in in_use for _, gpu in own),
            appliances=list(dict.fromkeys(appliance.name for appliance, _ in own)),
            models=sorted({gpu.model for _, gpu in own}),
            warnings=list(_warnings(policy, own, fleet)),
        )
        for place, policy in enumerate(policies)
        for own in [pairs.get(place, [])]
    ]


def changed_gpus(
    fleet: Sequence[SharingAppliance], after: Sequence[Policy], before: Sequence[Policy]
) -> Mapping[str, str]:
    """Return the GPUs, with their appliances, that change from some policies to others.

    A GPU that has not followed its policy yet is one of them.
    """
    changed = {}
    rows = zip(covered(fleet, after), covered(fleet, before), strict=True)
    for (appliance, gpu, new), (_, _, old) in rows:
        is_mig = new >= 0 and after[new].mode is PartitionMode.MIG and gpu.is_mig_capable
        if _ways(after, new) != _ways(before, old) or is_mig is not gpu.is_mig_enabled:
            changed[gpu.uuid] = appliance.id
    return changed


def counted(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """Return the first names of a list, and how many others it has."""
    rest = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def _ways(policies: Sequence[Policy], place: int) -> tuple[object, ...] | None:
    policy = policies[place] if place >= 0 else None
    if policy is None or policy.mode is PartitionMode.WHOLE:
        return None
    return policy.mode, policy.layout, policy.may_change_layout, policy.shares


def _warnings(
    policy: Policy,
    own: Sequence[tuple[SharingAppliance, GPU]],
    fleet: Sequence[SharingAppliance],
) -> Iterator[str]:
    if not own:
        yield _why_none(policy, fleet)
        return
    name = MODE_NAMES[policy.mode]
    appliances = {appliance.name: appliance for appliance, _ in own}
    unable = [at for at, row in appliances.items() if policy.mode not in row.modes]
    if policy.mode is not PartitionMode.WHOLE and len(unable) == len(appliances):
        yield f"No agent of these appliances can share GPUs by {name}. Update the agents."
    elif policy.mode is not PartitionMode.WHOLE and unable:
        yield f"The agents of {listed(unable)} can't share GPUs by {name}. Update them."
    if policy.mode is not PartitionMode.MIG:
        return
    lacking = Counter(gpu.model for _, gpu in own if not gpu.is_mig_capable)
    for model, number in lacking.items():
        yield f"{counted(number, 'GPU')} of the model {model} can't use MIG and stay whole."
    unknown = {gpu.model for _, gpu in own if gpu.is_mig_capable} - profiles_by_model(fleet).keys()
    if policy.layout and unknown:
        models = listed(sorted(unknown))
        yield f"The MIG profiles of {models} are known, and the layout checked, once MIG is on."


def _why_none(policy: Policy, fleet: Sequence[SharingAppliance]) -> str:
    models = sorted({gpu.model for appliance in fleet for gpu in appliance.gpus})
    if not models:
        return "No appliance has GPUs yet."
    if not any(policy.gpu_model.lower() in model.lower() for model in models):
        return f"No GPU has {policy.gpu_model!r} in its model. There are: {listed(models)}."
    alone = (place for _, _, place in covered(fleet, [policy]))
    if any(place == 0 for place in alone):
        return "Policies before it cover all of its GPUs. Move it up."
    return "No appliance with these labels has such GPUs."


@lru_cache(10_000)
def _labels(stored: str) -> frozenset[tuple[str, str]]:
    return frozenset(msgspec.json.decode(stored, type=dict[str, str]).items())


def _parse(inventory: str, _health: str | None) -> tuple[Sequence[GPU], frozenset[str]]:
    report = sharing_hardware(inventory)
    # GPUs of a model have the same profiles, so those of a fleet share them.
    gpus = [
        msgspec.structs.replace(gpu, mig_profiles=_same(gpu.mig_profiles)) for gpu in report.gpus
    ]
    return gpus, frozenset(report.partition_modes)


@lru_cache(1000)
def _same(profiles: Profiles) -> Profiles:
    return valid_profiles(profiles)


_REPORTS = ReportCache(_parse)
