"""Orders of challenges: when they are due, of which appliances at the same time, how large."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import Select, exists, or_, select
from sqlalchemy.orm import Session

from core.settings import ServerSettings
from jobqueue.models import Attempt
from jobqueue.states import ALLOCATED_STATES
from marketplace.verification.identities import others_with
from marketplace.verification.inventory_checks import NVIDIA_PREFIX, SIMULATED, shares_memory
from protocol.challenges import ChallengeOrder
from protocol.inventory import Inventory
from tenants.fleet.agents import lock_appliance
from tenants.fleet.appliances import bump_generation, read_inventory
from tenants.fleet.states import has_no_connector, in_service
from tenants.models import (
    Appliance,
    ApplianceState,
    Challenge,
    ChallengeOutcome,
    Verification,
)

MAX_ORDERS = 20
# Others of the same provider that are challenged at the same time.
MAX_PARTNERS = 3
# The pull of the image, the challenge itself, and the way there and back.
ANSWER_WITHIN = timedelta(minutes=15)
RETRY_AFTER = timedelta(minutes=10)
SHORTEST_SHARE, LONGEST_SHARE = 1 / 7, 3.0
UNIFIED_PERCENT = 50
_RANDOM = secrets.SystemRandom()
_LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the operator set.

    Attributes:
        image: of challenges.
        interval: the mean time between challenges of an appliance.
        accepts_simulated: whether simulated appliances can pass.
        mail_url: the portal's address for links in emails; "" sends none.
    """

    image: str
    interval: timedelta
    accepts_simulated: bool = False
    mail_url: str = ""

    @classmethod
    def of(cls, settings: ServerSettings) -> "Policy":
        """Return the policy of a portal."""
        return cls(
            image=settings.verification_image,
            interval=timedelta(seconds=settings.verification_interval_seconds),
            accepts_simulated=settings.verification_accepts_simulated,
            mail_url=settings.resolved_public_url if settings.smtp_url else "",
        )


def next_challenge_at(policy: Policy, *, now: datetime) -> datetime:
    """Return a time that nobody can predict, on average an interval from now."""
    share = _RANDOM.expovariate(1.0)
    return now + policy.interval * min(max(share, SHORTEST_SHARE), LONGEST_SHARE)


def order_due(session: Session, policy: Policy, *, now: datetime) -> int:
    """Order the challenges that are due of idle appliances, and of partners; return how many."""
    due = _free(select(Verification.appliance_id)).where(Verification.next_at <= now)
    idents = list(session.scalars(due.order_by(Verification.next_at).limit(MAX_ORDERS)))
    ordered: set[str] = set()
    for ident in idents:
        if ident in ordered:
            continue
        group = [ident, *_partners(session, ident, now=now)]
        ordered |= set(_order(session, group, policy, now=now))
    return len(ordered)


def _order(session: Session, group: Sequence[str], policy: Policy, *, now: datetime) -> list[str]:
    """Order challenges of several appliances at the same time; return those that can answer."""
    specs: dict[str, ChallengeOrder] = {}
    for ident in sorted(group):
        appliance = lock_appliance(session, ident)
        row = session.get_one(Verification, ident, populate_existing=True)
        inventory = read_inventory(appliance)
        if not inventory.can_challenge or inventory.cluster is not None:
            row.next_at = next_challenge_at(policy, now=now)
            continue
        row.challenge_number += 1
        row.next_at = next_challenge_at(policy, now=now)
        specs[ident] = order_for(inventory, policy, number=row.challenge_number)
    for ident, spec in specs.items():
        tenant_id = session.get_one(Appliance, ident).tenant_id
        session.add(
            Challenge(
                tenant_id=tenant_id,
                appliance_id=ident,
                number=spec.number,
                spec=msgspec.to_builtins(spec),
                partners=[other for other in specs if other != ident],
                outcome=ChallengeOutcome.OPEN,
                ordered_at=now,
            )
        )
        session.flush()
        bump_generation(session, ident)
    return list(specs)


def order_for(inventory: Inventory, policy: Policy, *, number: int) -> ChallengeOrder:
    """Return a challenge of all GPUs of an appliance, with a seed of its own.

    AMD's GPUs, and those that MIG cuts, are checked by the inventory alone. Simulated ones compute
    without the memory, so they get a small one. Of memory that is the host's, half is left to it.
    """
    order = ChallengeOrder(
        number=number,
        seed=_RANDOM.randint(0, _LARGEST_SEED),
        image=policy.image,
        gpu_uuids=[
            gpu.uuid
            for gpu in inventory.gpus
            if gpu.uuid.startswith(NVIDIA_PREFIX) and not gpu.is_mig_enabled
        ],
    )
    if any(shares_memory(gpu) for gpu in inventory.gpus):
        order = msgspec.structs.replace(order, memory_percent=UNIFIED_PERCENT)
    if SIMULATED not in inventory.executors:
        return order
    small = {"rounds": 1, "leaves": 32, "steps": 8, "cpu_words": 2**10, "cpu_leaves": 16}
    return msgspec.structs.replace(order, **small)


def _partners(session: Session, ident: str, *, now: datetime) -> list[str]:
    """Return idle appliances to challenge at the same time.

    Those that report the same hardware come first, then random ones of the same provider that were
    not challenged for a day. Nor were those of other tenants: who copies what they report does not
    keep them busy.
    """
    suspects = {other for others in others_with(session, ident).values() for other, _ in others}
    free = _free(select(Verification.appliance_id))
    tenant_id = session.get_one(Verification, ident).tenant_id
    recent = exists().where(
        Challenge.appliance_id == Verification.appliance_id,
        Challenge.ordered_at > now - timedelta(days=1),
    )
    chosen = session.scalars(
        free.where(
            Verification.appliance_id.in_(suspects),
            or_(Verification.tenant_id == tenant_id, ~recent),
        )
    )
    partners = list(chosen.all())[:MAX_PARTNERS]
    idle = session.scalars(
        free.where(
            Verification.tenant_id == tenant_id, Verification.appliance_id != ident, ~recent
        ).limit(MAX_ORDERS)
    ).all()
    others = sorted(set(idle) - set(partners))
    count = min(MAX_PARTNERS - len(partners), len(others))
    return partners + _RANDOM.sample(others, count)


def _free(statement: Select[Any]) -> Select[Any]:
    """Return a query of those that are online and have neither jobs nor an open challenge."""
    has_jobs = exists().where(
        Attempt.appliance_id == Verification.appliance_id, Attempt.state.in_(ALLOCATED_STATES)
    )
    is_open = exists().where(
        Challenge.appliance_id == Verification.appliance_id,
        Challenge.outcome == ChallengeOutcome.OPEN,
    )
    return statement.join(Appliance, Appliance.id == Verification.appliance_id).where(
        in_service(),
        has_no_connector(),
        Appliance.state == ApplianceState.ONLINE,
        Appliance.fenced_at.is_(None),
        ~has_jobs,
        ~is_open,
    )
