"""Processes that report themselves at the same moment don't hinder each other."""

from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.db import SessionFactory, transaction
from tenants.lifecycle.server_processes import note_process
from tenants.models import ServerProcess
from tests.cast import NOON
from tests.integration.races.contending import contend

PROCESSES, ROUNDS = 8, 2


def test_all_heartbeats_are_written(factory: SessionFactory) -> None:
    def beat(number: int, beat_number: int) -> Callable[[Session], None]:
        at = NOON + timedelta(seconds=beat_number)
        process = ServerProcess(
            holder=f"host-{number}", url="", version="", started_at=NOON, seen_at=at
        )
        return lambda session: note_process(session, process)

    for beat_number in range(ROUNDS):
        racers = [beat(number, beat_number) for number in range(PROCESSES)]
        assert contend(factory, racers) == [None] * PROCESSES
    with transaction(factory) as session:
        at = select(func.count()).where(
            ServerProcess.seen_at == NOON + timedelta(seconds=ROUNDS - 1)
        )
        assert session.scalar(at) == PROCESSES
