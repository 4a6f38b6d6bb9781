"""Two first reports of an appliance's storage that meet are both stored, and answered."""

from functools import partial

from sqlalchemy import func, select

from core.db import SessionFactory, transaction
from jobqueue.storage.models import ContainerStorage
from jobqueue.storage.service import record_storage
from protocol.storage import CleanupOrder, StorageReport
from tests.cast import NOON, Cast
from tests.integration.races.contending import contend
from tests.unit.jobqueue.builders import add_appliance

REPORTS = 6


def test_first_reports_that_meet_are_all_answered(factory: SessionFactory, people: Cast) -> None:
    with transaction(factory) as session:
        appliance_id = add_appliance(session, people.acme, "dgx-01").id
    racer = partial(
        record_storage,
        appliance_id=appliance_id,
        report=StorageReport(disk_total_bytes=1),
        now=NOON,
    )
    answers = contend(factory, [racer] * REPORTS)
    assert answers == [CleanupOrder()] * REPORTS
    with transaction(factory) as session:
        assert session.scalar(select(func.count()).select_from(ContainerStorage)) == 1
