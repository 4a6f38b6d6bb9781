"""Tenants use the worker for large bodies in turns."""

import asyncio
import threading
from functools import partial

import pytest

from access.errors import BadRequestError
from access.ingest.body import gunzip
from access.ingest.fair_worker import FairWorker


def test_a_tenant_with_one_body_does_not_wait_for_all_of_another() -> None:
    assert asyncio.run(_order(["acme", "acme", "acme", "acme", "globex"])) == [
        *("acme", "acme", "globex", "acme", "acme")
    ]


def test_a_cancelled_turn_is_passed_on() -> None:
    async def run() -> list[str]:
        worker, gate, done = FairWorker(), threading.Event(), list[str]()
        first = asyncio.create_task(worker.run("acme", gate.wait))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(worker.run("acme", lambda: done.append("acme")))
        last = asyncio.create_task(worker.run("globex", lambda: done.append("globex")))
        await asyncio.sleep(0)
        waiting.cancel()
        gate.set()
        await asyncio.gather(first, last)
        return done

    assert asyncio.run(run()) == ["globex"]


def test_an_error_passes_the_turn_on() -> None:
    async def run() -> int:
        worker = FairWorker()
        with pytest.raises(BadRequestError):
            await worker.run("acme", lambda: gunzip(b"no gzip", max_bytes=10))
        return await worker.run("globex", lambda: 1)

    assert asyncio.run(run()) == 1


async def _order(tenants: list[str]) -> list[str]:
    worker, gate, done = FairWorker(), threading.Event(), list[str]()

    def work(tenant: str) -> None:
        gate.wait(30)
        done.append(tenant)

    tasks = []
    for tenant in tenants:
        tasks.append(asyncio.create_task(worker.run(tenant, partial(work, tenant))))
        await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*tasks)
    return done
