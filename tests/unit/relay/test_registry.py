"""Who may authenticate: by token, certificate or both; after a restart, and not for ever."""

import asyncio
import ssl
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import pytest
from starlette.types import Scope

from core.clock import to_ns
from protocol.relays import RelayedCertificate
from relay.errors import UpstreamAwayError
from relay.registry import WAIT_SECONDS, Registry
from relay.upstream import Upstream
from tests.fixtures.certificates import Authority
from tests.fixtures.relay_center import RELAY_TOKEN, Center
from tests.unit.collector.hand_clock import HandClock
from tests.unit.relay.conftest import reaching

DAY = 86_400.0


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def registry_in(folder: Path, clock: HandClock) -> Registry:
    return Registry(
        folder / "registry.json",
        authorities_path=folder / "authorities.pem",
        max_age_seconds=7 * DAY,
        clock=clock,
    )


def refreshed(registry: Registry, center: Center, *, wait_seconds: float = 0.0) -> Registry:
    async def run() -> None:
        async with reaching(center) as upstream:
            await registry.refresh(upstream, wait_seconds=wait_seconds)

    asyncio.run(run())
    return registry


def plain() -> Scope:
    return {"type": "http", "headers": []}


def with_certificate(pem: str) -> Scope:
    return {"type": "http", "headers": [], "extensions": {"tls": {"client_cert_chain": [pem]}}}


def name_of(registry: Registry, token: str = "", *, scope: Scope | None = None) -> str | None:
    authorization = f"Bearer {token}" if token else ""
    agent = registry.agent(scope or plain(), authorization)
    return agent.name if agent is not None else None


def test_agents_authenticate_by_their_tokens(
    served: Center, tmp_path: Path, clock: HandClock
) -> None:
    token = served.enroll("dgx-1")
    registry = refreshed(registry_in(tmp_path, clock), served)
    assert name_of(registry, token) == "dgx-1"
    assert registry.agent(plain(), f"Token {token}") is not None
    assert name_of(registry, "vda_of-another-portal") is None
    assert name_of(registry) is None
    assert registry.agent(plain(), f"Basic {token}") is None


def test_a_certificate_and_a_token_must_be_of_the_same_agent(
    served: Center, tmp_path: Path, clock: HandClock
) -> None:
    own_token, other_token = served.enroll("dgx-1"), served.enroll("dgx-2")
    pem = Authority(tmp_path / "ca", "CA").issue("dgx-1").certificate.read_text()
    unused = Authority(tmp_path / "ca", "CA").issue("new").certificate.read_text()
    valid_until = clock() + timedelta(hours=1)
    served.certificates = [
        RelayedCertificate(
            fingerprint=sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest(),
            appliance_id="dgx-1",
            valid_until_ns=to_ns(valid_until),
        )
    ]
    registry = refreshed(registry_in(tmp_path, clock), served)
    shown = with_certificate(pem)
    assert name_of(registry, scope=shown) == "dgx-1"
    assert name_of(registry, own_token, scope=shown) == "dgx-1"
    assert name_of(registry, other_token, scope=shown) is None
    # The portal admits its first use.
    assert name_of(registry, own_token, scope=with_certificate(unused)) is None
    clock.advance(3601)
    assert name_of(registry, own_token, scope=shown) is None


def test_a_token_alone_is_not_enough_where_certificates_are_needed(
    served: Center, tmp_path: Path, clock: HandClock
) -> None:
    token = served.enroll("dgx-1")
    served.needs_certificate = True
    registry = refreshed(registry_in(tmp_path, clock), served)
    assert name_of(registry, token) is None


def test_a_client_cannot_claim_a_certificate_in_headers(
    served: Center, tmp_path: Path, clock: HandClock
) -> None:
    token = served.enroll("dgx-1")
    registry = refreshed(registry_in(tmp_path, clock), served)
    headers = [(b"x-vedette-client-certificate", b"x"), (b"x-vedette-client-verify", b"SUCCESS")]
    assert name_of(registry, token, scope={"type": "http", "headers": headers}) is None


def test_a_revoked_agent_is_refused_as_soon_as_the_portal_says_so(
    served: Center, tmp_path: Path, clock: HandClock
) -> None:
    token = served.enroll("dgx-1")
    registry = refreshed(registry_in(tmp_path, clock), served)

    async def run() -> None:
        async with reaching(served) as upstream:
            waiting = asyncio.create_task(registry.refresh(upstream, wait_seconds=20))
            await asyncio.sleep(0.1)
            del served.agents["dgx-1"]
            await asyncio.wait_for(waiting, 5)

    asyncio.run(run())
    assert name_of(registry, token) is None


def test_a_restarted_relay_knows_its_agents_for_some_days(
    served: Center, tmp_path: Path, clock: HandClock
) -> None:
    token = served.enroll("dgx-1")
    served.authorities = "-----BEGIN CERTIFICATE-----\n"
    refreshed(registry_in(tmp_path, clock), served)
    clock.advance(6 * DAY)
    restarted = registry_in(tmp_path, clock)
    restarted.load()
    assert name_of(restarted, token) == "dgx-1"
    assert restarted.age_seconds == pytest.approx(6 * DAY)
    assert (tmp_path / "registry.json").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "authorities.pem").read_text() == served.authorities
    clock.advance(DAY)
    assert name_of(restarted, token) is None
    assert not restarted.is_fresh
    # The portal confirms it, though nothing has changed.
    assert name_of(refreshed(restarted, served), token) == "dgx-1"
    clock.advance(6 * DAY)
    third = registry_in(tmp_path, clock)
    third.load()
    assert name_of(third, token) == "dgx-1"


def test_a_copy_of_a_clock_that_was_ahead_does_not_count_for_longer(
    served: Center, tmp_path: Path, clock: HandClock
) -> None:
    served.enroll("dgx-1")
    refreshed(registry_in(tmp_path, clock), served)
    clock.advance(-100 * DAY)
    restarted = registry_in(tmp_path, clock)
    restarted.load()
    assert restarted.age_seconds == 0


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 100])
def test_a_damaged_copy_is_read_from_the_portal(
    served: Center, tmp_path: Path, clock: HandClock, content: bytes
) -> None:
    (tmp_path / "registry.json").write_bytes(content)
    token = served.enroll("dgx-1")
    registry = registry_in(tmp_path, clock)
    registry.load()
    assert not registry.has_snapshot
    assert name_of(refreshed(registry, served), token) == "dgx-1"


def test_after_each_failure_it_asks_at_once(
    tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.registry.RETRY_SECONDS", 0.0)
    waits: list[float] = []

    async def run() -> None:
        upstream = Upstream("http://127.0.0.1:9", token=RELAY_TOKEN, tls=None)

        async def answer(_revision: str, *, wait_seconds: float) -> None:
            waits.append(wait_seconds)
            if len(waits) == 2:
                raise UpstreamAwayError("The portal does not answer.")
            if len(waits) == 4:
                raise asyncio.CancelledError

        monkeypatch.setattr(upstream, "registry", answer)
        await registry_in(tmp_path, clock).follow(upstream)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert waits == [0.0, WAIT_SECONDS, 0.0, WAIT_SECONDS]
