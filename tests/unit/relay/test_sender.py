"""Writes of agents: grouped, answered for themselves, on disk while the portal is away."""

import asyncio
from collections.abc import Awaitable

import pytest

from core.errors import UnavailableError
from protocol.relays import RelayedOutcome
from relay import upstream as upstream_module
from relay.errors import SpoolFullError, UpstreamRefusedError
from relay.sender import Sender
from relay.spool import Spool
from relay.upstream import State
from tests.fixtures.relay_center import Center
from tests.unit.relay.conftest import number_of, reaching, write_of


async def all_of(*outcomes: Awaitable[RelayedOutcome]) -> list[int]:
    return [outcome.status for outcome in await asyncio.gather(*outcomes)]


def spooled(spool: Spool) -> list[int]:
    spool.rewind()
    entries, _ = spool.read(max_writes=10_000, max_bytes=2**24)
    return [number_of(entry.write.body) for entry in entries]


def test_writes_that_arrive_while_others_are_on_their_way_form_groups(
    served: Center, spool: Spool
) -> None:
    served.delay_seconds = 0.05

    async def play() -> list[int]:
        async with reaching(served) as upstream:
            sender = Sender(upstream, spool)
            first = asyncio.create_task(sender.write(write_of("a", 0)))
            await asyncio.sleep(0.02)
            return await all_of(first, *(sender.write(write_of("b", n)) for n in range(100)))

    assert asyncio.run(play()) == [204] * 101
    assert served.groups == [1, 100]
    assert [number_of(body) for body in served.bodies("b")] == list(range(100))
    assert spool.waiting_bytes == 0


def test_each_agent_gets_its_own_outcome(served: Center, spool: Spool) -> None:
    served.outcomes = {
        "a": [RelayedOutcome(status=400, body=b"{}")],
        "b": [RelayedOutcome(status=429, retry_after_seconds=7)],
    }

    async def play() -> list[RelayedOutcome]:
        async with reaching(served) as upstream:
            sender = Sender(upstream, spool)
            return await asyncio.gather(*(sender.write(write_of(name, 1)) for name in "abc"))

    rejected, limited, stored = asyncio.run(play())
    assert (rejected.status, rejected.body) == (400, b"{}")
    assert (limited.status, limited.retry_after_seconds) == (429, 7)
    assert stored.status == 204
    assert spool.waiting_bytes == 0


@pytest.mark.parametrize("status", [500, 502, 503, 504, 404])
def test_writes_are_stored_on_disk_while_the_portal_fails(
    served: Center, spool: Spool, status: int
) -> None:
    served.status = status

    async def play() -> list[int]:
        async with reaching(served) as upstream:
            sender = Sender(upstream, spool)
            return await all_of(*(sender.write(write_of("a", n)) for n in range(10)))

    assert asyncio.run(play()) == [204] * 10
    assert spooled(spool) == list(range(10))


def test_writes_are_stored_on_disk_while_nobody_answers(center: Center, spool: Spool) -> None:
    async def play() -> tuple[list[int], str]:
        async with reaching(center) as upstream:
            sender = Sender(upstream, spool)
            return await all_of(*(sender.write(write_of("a", n)) for n in range(5))), (
                upstream.reason
            )

    assert asyncio.run(play()) == (
        [204] * 5,
        f"The portal at {center.url} does not answer: connection refused.",
    )
    assert spooled(spool) == list(range(5))


def test_a_portal_that_hangs_delays_the_first_writes_alone(
    served: Center, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_module, "ANSWER_SECONDS", 0.3)
    served.is_hanging = True

    async def play() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        async with reaching(served) as upstream:
            sender = Sender(upstream, spool)
            began = loop.time()
            await sender.write(write_of("a", 1))
            first = loop.time() - began
            began = loop.time()
            await all_of(*(sender.write(write_of("a", n)) for n in range(2, 50)))
            return first, loop.time() - began

    first, others = asyncio.run(play())
    assert 0.3 <= first < 5
    assert others < 0.3
    assert spooled(spool) == list(range(1, 50))


def test_too_many_requests_are_no_outage(served: Center, spool: Spool) -> None:
    served.status = 429

    async def play() -> tuple[int, State]:
        async with reaching(served) as upstream:
            outcome = await Sender(upstream, spool).write(write_of("a", 1))
            return outcome.status, upstream.state

    assert asyncio.run(play()) == (204, State.UP)
    assert spooled(spool) == [1]


def test_agents_keep_their_samples_when_the_portal_refuses_the_relay(
    served: Center, spool: Spool
) -> None:
    served.relay_token = "another"

    async def play() -> None:
        async with reaching(served) as upstream:
            sender = Sender(upstream, spool)
            for _ in range(2):
                with pytest.raises(UpstreamRefusedError, match="refuses this relay's token"):
                    await sender.write(write_of("a", 1))

    asyncio.run(play())
    assert spool.waiting_bytes == 0


def test_agents_keep_their_samples_when_the_spool_is_full(center: Center, spool: Spool) -> None:
    spool._max_bytes = 10  # noqa: SLF001 - a spool of megabytes takes long to fill

    async def play() -> int:
        async with reaching(center) as upstream:
            sender = Sender(upstream, spool)
            with pytest.raises(SpoolFullError) as caught:
                await sender.write(write_of("a", 1))
            assert isinstance(caught.value, UnavailableError)
            assert caught.value.retry_after_seconds == 30
            return sender.refused

    assert asyncio.run(play()) == 1


def test_requests_that_a_proxy_refuses_as_too_large_are_split(served: Center, spool: Spool) -> None:
    served.max_bytes = 3_000

    async def play() -> list[int]:
        async with reaching(served) as upstream:
            sender = Sender(upstream, spool)
            writes = [write_of("a", n, size=1_000) for n in range(8)]
            large = write_of("b", 1, size=5_000)
            return await all_of(*map(sender.write, [*writes, large]))

    assert asyncio.run(play()) == [204] * 8 + [413]
    assert [number_of(body) for body in served.bodies("a")] == list(range(8))
    assert spool.waiting_bytes == 0


def test_a_portal_that_is_up_gets_writes_without_the_disk(served: Center, spool: Spool) -> None:
    spool._max_bytes = 0  # noqa: SLF001 - nothing can be stored

    async def play() -> list[int]:
        async with reaching(served) as upstream:
            sender = Sender(upstream, spool)
            return await all_of(*(sender.write(write_of("a", n)) for n in range(3)))

    assert asyncio.run(play()) == [204] * 3


def test_requests_that_take_too_long_are_smaller_the_next_time(
    served: Center, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_module, "ANSWER_SECONDS", 0.2)
    served.bytes_per_second = 400_000.0

    async def play() -> list[int]:
        async with reaching(served) as upstream:
            sender = Sender(upstream, spool)
            sizes = [upstream.group_bytes]
            await all_of(*(sender.write(write_of("a", n, size=10_000)) for n in range(40)))
            sizes.append(upstream.group_bytes)
            served.bytes_per_second = 1e9
            await upstream.samples([write_of("a", n, size=10_000) for n in range(20)])
            return [*sizes, upstream.group_bytes]

    first, slow, quick = asyncio.run(play())
    assert slow < first / 10
    assert slow < quick <= first
