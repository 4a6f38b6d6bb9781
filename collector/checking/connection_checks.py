"""What `vedette agent check` finds at the portal: if it answers, how fast, when, and to whom."""

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from statistics import median
from urllib.parse import urlsplit

from collector.checking.findings import Finding, Verdict
from collector.checking.writing_checks import check_writing
from collector.config import AgentConfig
from collector.errors import CollectorError, PortalRefusedError
from collector.identity import Identity
from collector.sending.addresses import PortalAddresses
from collector.sending.answers import root_cause
from collector.sending.connections import Connections, HTTPFailure
from collector.sending.delivery import build_tls
from collector.sending.link import PortalLink
from collector.sending.tls import TLSContexts
from core.clock import Clock

LATENCY_TRIES = 3
LARGEST_SKEW_SECONDS = 5.0
# A Date header says no more than the second.
DATE_CENTRE_SECONDS = 0.5
HEALTHY = (200, 204)
HTTP_UNAUTHORIZED = (401, 403)


def check_connections(
    config: AgentConfig, identity: Identity | None, *, clock: Clock
) -> Iterator[Finding]:
    """Yield what is found at each address, one finding after the other.

    Args:
        config: says where the samples go: to a portal, or to an InfluxDB.
        identity: asks the portals whether they take it; None asks nothing.
        clock: this host's time, which is compared with theirs.
    """
    portal = _Portal(config, clock, build_tls(config))
    if config.influxdb is not None:
        url = config.influxdb.url
        found = list(_connection(url, portal, None))
        yield from found
        if all(finding.verdict is not Verdict.FAIL for finding in found):
            yield check_writing(config.influxdb, config, tls=portal.tls)
        return
    for url in config.portal_urls:
        yield from _connection(url, portal, identity)


@dataclass(frozen=True, slots=True)
class _Portal:
    """How the portal is to be asked."""

    config: AgentConfig
    clock: Clock
    tls: TLSContexts


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    latency_seconds: float
    skew_seconds: float | None


def _connection(url: str, portal: _Portal, identity: Identity | None) -> Iterator[Finding]:
    """Yield whether the portal answers at this address, how fast, at what time, and to whom."""
    is_portal = portal.config.influxdb is None
    what, host = f"{'portal' if is_portal else 'InfluxDB'} {url}", urlsplit(url).hostname
    try:
        socket.getaddrinfo(host, urlsplit(url).port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        advice = "Check the address and this host's resolver (/etc/resolv.conf)."
        yield Finding(Verdict.FAIL, what, f"{host} has no address: {error}", advice)
        return
    health_url = f"{url.rstrip('/')}/{'health' if is_portal else 'ping'}"
    try:
        answer = _ask_health(health_url, portal)
    except (*HTTPFailure, ValueError) as error:
        advice = f"Check the network, firewalls and proxies; try: curl -i {health_url}"
        yield Finding(Verdict.FAIL, what, f"does not answer: {root_cause(error)}", advice)
        return
    yield _health(what, health_url, answer)
    if answer.skew_seconds is not None:
        yield _clock(url, answer.skew_seconds)
    if identity is not None:
        yield _acceptance(url, portal, identity)


def _ask_health(url: str, portal: _Portal) -> _Answer:
    """Ask a few times over one connection; the first one pays for its setup."""
    timeout_seconds = portal.config.request_timeout_seconds
    connections = Connections(portal.tls)
    skew_seconds: float | None = None
    latencies: list[float] = []
    try:
        for turn in range(1 + LATENCY_TRIES):
            asked_at, began = portal.clock(), time.perf_counter()
            response = connections.request(
                "GET",
                url,
                timeout_seconds=(timeout_seconds, timeout_seconds),
            )
            latency_seconds = time.perf_counter() - began
            if turn:  # the first one opens the connection
                latencies.append(latency_seconds)
                date = response.headers.get("Date")
                skew_seconds = _skew(date, asked_at.timestamp() + latency_seconds / 2)
    finally:
        connections.close()
    return _Answer(response.status, median(latencies), skew_seconds)


def _skew(date: str | None, middle: float) -> float | None:
    """Return how far the portal's clock is ahead; None where it does not tell the time."""
    if not date:
        return None
    try:
        return parsedate_to_datetime(date).timestamp() + DATE_CENTRE_SECONDS - middle
    except ValueError:
        return None


def _health(what: str, url: str, answer: _Answer) -> Finding:
    latency = f"{answer.latency_seconds * 1000:.0f} ms"
    if answer.status in HEALTHY:
        return Finding(Verdict.OK, what, f"answers in {latency}")
    said = f"{url} answered {answer.status} in {latency}"
    return Finding(Verdict.FAIL, what, said, "Check the address and, if it is right, the server.")


def _clock(url: str, skew_seconds: float) -> Finding:
    what = f"clock against {url}"
    if abs(skew_seconds) > LARGEST_SKEW_SECONDS:
        side = "behind" if skew_seconds > 0 else "ahead"
        said = f"this host is {abs(skew_seconds):.0f} s {side}"
        return Finding(Verdict.WARNING, what, said, "Set the clock: timedatectl set-ntp true")
    return Finding(Verdict.OK, what, f"less than {max(1.0, abs(skew_seconds)):.0f} s apart")


def _acceptance(url: str, portal: _Portal, identity: Identity) -> Finding:
    what = f"identity at {url}"
    config = portal.config
    link = PortalLink(
        PortalAddresses([url]),
        agent_token=identity.agent_token,
        timeout_seconds=config.request_timeout_seconds,
        tls=portal.tls,
    )
    try:
        link.desired(-1, wait_seconds=0.0)
    except PortalRefusedError as error:
        if error.http_status in HTTP_UNAUTHORIZED:
            advice = (
                "Samples are kept meanwhile. Where it asks for that, enrol with a new token: "
                "vedette agent enroll --again."
            )
            said = f"this appliance is not taken: {error.message}"
            return Finding(Verdict.FAIL, what, said, advice)
        return Finding(Verdict.FAIL, what, error.message, "Check that both sides fit together.")
    except CollectorError as error:
        return Finding(Verdict.FAIL, what, error.message, "Try again when the portal is well.")
    finally:
        link.close()
    return Finding(Verdict.OK, what, "is taken")
