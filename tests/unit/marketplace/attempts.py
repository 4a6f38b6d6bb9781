"""Attempts of customers that ended on rented appliances."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobqueue.models import Attempt
from jobqueue.states import AttemptState, Reason
from marketplace.models import Contract
from tenants.models import OfferedAppliance
from tests.cast import NOON, Cast
from tests.unit.jobqueue.builders import submit

HOUR = timedelta(hours=1)
LOST: dict[str, Any] = {"state": AttemptState.LOST, "reason": Reason.APPLIANCE_LOST}


def end_attempts(
    session: Session,
    cast: Cast,
    contract: Contract,
    *outcomes: dict[str, Any],
    at: datetime = NOON - HOUR,
) -> None:
    """Let attempts of globex under the contract end; they started unless it says otherwise."""
    offered = select(OfferedAppliance.appliance_id).where(
        OfferedAppliance.offer_id == contract.offer_id
    )
    appliance_id = session.scalars(offered.limit(1)).one()
    job = submit(session, cast.charlie, name=f"train-{at:%d%H}")
    for number, outcome in enumerate(outcomes):
        values: dict[str, Any] = {
            "state": AttemptState.SUCCEEDED,
            "reason": Reason.NONE,
            "started_at": at,
            **outcome,
        }
        session.add(
            Attempt(
                job_id=job.id,
                tenant_id=cast.globex.id,
                appliance_id=appliance_id,
                contract_id=contract.id,
                provider_id=contract.provider_id,
                number=number,
                bound_at=at,
                assigned_at=at,
                finished_at=at,
                **values,
            )
        )
    session.flush()
