"""Hardware that several appliances report: each GPU belongs to the first that reported it."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from core.db import chunked
from marketplace.verification.findings import Finding, failure, warning
from protocol.inventory import Inventory
from tenants.fleet.states import in_service
from tenants.models import Appliance, HardwareIdentity, IdentityKind
from tenants.models.verification import MAX_IDENTITY_LENGTH

Identity = tuple[IdentityKind, str]
_TEXTS = {
    IdentityKind.UUID: "the GPU {}",
    IdentityKind.SERIAL: "the GPU with the serial number {}",
    IdentityKind.SLOT: "the GPU in the slot {} of the same boot of the same host",
}
_ADVICE = "Retire the appliance of the agent that runs twice, and enroll each host once."


def identities_of(inventory: Inventory) -> set[Identity]:
    """Return what identifies the GPUs of an inventory."""
    identities = set()
    for gpu in inventory.gpus:
        identities.add((IdentityKind.UUID, gpu.uuid))
        if gpu.serial:
            # Serials are unique for a maker's model only.
            identities.add((IdentityKind.SERIAL, f"{gpu.serial} ({gpu.model})"))
        if inventory.boot_id and gpu.pci_address:
            identities.add((IdentityKind.SLOT, f"{gpu.pci_address}, boot {inventory.boot_id}"))
    return {(kind, value[:MAX_IDENTITY_LENGTH]) for kind, value in identities}


def store_identities(
    session: Session, appliance_id: str, inventory: Inventory, *, now: datetime
) -> None:
    """Store what identifies an appliance's GPUs now; what it had before keeps its time.

    So does what a retired appliance of its tenant had: who enrolls a host again is not later than
    somebody who copied what it reports.
    """
    current = identities_of(inventory)
    own = select(HardwareIdentity).where(HardwareIdentity.appliance_id == appliance_id)
    before = {(row.kind, row.value): row.id for row in session.scalars(own)}
    gone = [before[identity] for identity in before.keys() - current]
    for part in chunked(gone):
        session.execute(delete(HardwareIdentity).where(HardwareIdentity.id.in_(part)))
    added = sorted(current - before.keys())
    earlier = _since_retired(session, appliance_id, [value for _, value in added])
    for kind, value in added:
        since = earlier.get((kind, value), now)
        row = HardwareIdentity(appliance_id=appliance_id, kind=kind, value=value, since=since)
        session.add(row)
    session.flush()


def _since_retired(
    session: Session, appliance_id: str, values: Sequence[str]
) -> dict[Identity, datetime]:
    """Return since when retired appliances of the same tenant had hardware."""
    tenant_id = select(Appliance.tenant_id).where(Appliance.id == appliance_id).scalar_subquery()
    since: dict[Identity, datetime] = {}
    for part in chunked(sorted(values)):
        retired = (
            select(HardwareIdentity)
            .join(Appliance, Appliance.id == HardwareIdentity.appliance_id)
            .where(
                HardwareIdentity.value.in_(part), Appliance.tenant_id == tenant_id, ~in_service()
            )
            .order_by(HardwareIdentity.since.desc())
        )
        since |= {(row.kind, row.value): row.since for row in session.scalars(retired)}
    return since


def others_with(session: Session, appliance_id: str) -> dict[Identity, list[tuple[str, bool]]]:
    """Return the other appliances in service with hardware of one: id, and whether it was first."""
    own = {
        (row.kind, row.value): row
        for row in session.scalars(
            select(HardwareIdentity).where(HardwareIdentity.appliance_id == appliance_id)
        )
    }
    shared: dict[Identity, list[tuple[str, bool]]] = {}
    for part in chunked(sorted({value for _, value in own})):
        others = (
            select(HardwareIdentity)
            .join(Appliance, Appliance.id == HardwareIdentity.appliance_id)
            .where(
                HardwareIdentity.value.in_(part),
                HardwareIdentity.appliance_id != appliance_id,
                in_service(),
            )
            .order_by(HardwareIdentity.since, HardwareIdentity.appliance_id)
        )
        for row in session.scalars(others):
            mine = own.get((row.kind, row.value))
            if mine is not None:
                is_first = (row.since, row.appliance_id) < (mine.since, mine.appliance_id)
                shared.setdefault((row.kind, row.value), []).append((row.appliance_id, is_first))
    return shared


def shared_findings(session: Session, appliance: Appliance) -> Iterator[Finding]:
    """Yield the hardware that an appliance shares with another one, one finding for each kind.

    The first that reported it may be right: only the others fail. Appliances of other tenants are
    not named.
    """
    shared = others_with(session, appliance.id)
    for kind in IdentityKind:
        members = {value: others for (its, value), others in shared.items() if its is kind}
        if not members:
            continue
        value, others = min(members.items())
        idents = [ident for ident, _ in others]
        own = session.scalars(
            select(Appliance.name).where(
                Appliance.id.in_(idents), Appliance.tenant_id == appliance.tenant_id
            )
        ).all()
        name = f"the appliance {own[0]!r}" if own else "an appliance of another tenant"
        text = f"It reports {_TEXTS[kind].format(value)}, as {name} does"
        count = f", and {len(members) - 1} more GPUs" if len(members) > 1 else ""
        is_later = any(is_first for others in members.values() for _, is_first in others)
        make = failure if is_later else warning
        since = ", since before this one." if is_later else ", since later than this one."
        yield make(
            f"shared_{kind.value}", f"{text}{count}{since}", _ADVICE, values=sorted(members)[:16]
        )
