"""Attempts of customers on appliances that they rent: what crosses the border between tenants.

The provider sees that a rented job runs on its appliance, under which contract, with which GPUs and
since when. Its appliance may read the data of that job, and of no other job of the customer.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session, lazyload

from core.db import chunked
from jobqueue.models import Attempt, Job
from jobqueue.states import ALLOCATED_STATES
from protocol.gpu_slices import GPUSlice
from tenants.models import Appliance
from tenants.permissions import Permission
from tenants.scope import Scope

MAX_RENTED_USES = 1000
RENTED_JOB = "rented job"
"""What the provider reads in place of the name of a customer's job."""
_IS_RENTED = (Attempt.contract_id.is_not(None), Attempt.state.in_(ALLOCATED_STATES))


@dataclass(frozen=True, slots=True, kw_only=True)
class RentedUse:
    """What a provider sees of an attempt of a customer."""

    appliance_id: str
    contract_id: str
    gpu_uuids: list[str]
    gpu_slice: GPUSlice | None
    since: datetime | None
