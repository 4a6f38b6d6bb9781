"""Checks of the connection to each portal address, or to the InfluxDB in its place."""

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from enum import StrEnum
from statistics import median
from urllib.parse import urlsplit

from collector.certificates import AgentCertificate
from collector.config import AgentConfig, InfluxDBSettings
from collector.data_dir import Identity
from collector.errors import CollectorError, PortalRefusedError
from collector.sending.access_points import AccessPoints
from collector.sending.delivery import build_tls
from collector.sending.http import HTTP_ERRORS, HTTPClient, error_message, root_cause
from collector.sending.listed import AccessPointFile, AccessPointState
from collector.sending.portal_connection import PortalConnection
from collector.sending.write_targets import InfluxDBTarget
from collector.tls import TLSContexts
from core.clock import Clock

LATENCY_REQUESTS = 3
PARALLEL_CHECKS = 8
MAX_SKEW_SECONDS = 5.0
# A Date header has whole seconds.
DATE_CENTER_SECONDS = 0.5
HEALTHY = (200, 204)
SUCCESS = range(200, 300)
UNAUTHORIZED = frozenset({401, 403})
# A write without lines: some versions accept it, others respond 400.
NO_LINES = b""
BAD_REQUEST, NOT_FOUND = 400, 404


class Verdict(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of output; `advice` says what to do."""

    verdict: Verdict
    name: str
    message: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class _Health:
    status: int
    latency_seconds: float
    skew_seconds: float | None


def check_connections(
    config: AgentConfig, identity: Identity | None, *, clock: Clock
) -> Iterator[CheckResult]:
    """Yield the results for each address.

    Args:
        config: the destination: a portal, or an InfluxDB.
        identity: checked at each portal address; None skips that.
        clock: this host's time, compared with theirs.
    """
    tls = build_tls(config, AgentCertificate(config.data_dir), clock=clock)
    if config.influxdb is not None:
        results = list(_check_address(config.influxdb.url, config, None, tls=tls, clock=clock))
        yield from results
        if all(result.verdict is not Verdict.FAIL for result in results):
            yield _check_write(config.influxdb, config, tls=tls)
        return
    configured = list(dict.fromkeys(url.rstrip("/") for url in config.portal_urls))
    state = AccessPointFile(config.data_dir).load(configured)
    listed = [point.url for point in state.listed.points] if state.listed is not None else []
    urls = list(dict.fromkeys([*state.configured, *listed]))
    with ThreadPoolExecutor(PARALLEL_CHECKS) as executor:
        checks = {
            url: executor.submit(
                lambda url: list(_check_address(url, config, identity, tls=tls, clock=clock)), url
            )
            for url in urls
        }
        for url, check in checks.items():
            # An appliance need not reach all access points of the portal.
            is_needed = url in state.configured or url == state.current
            for result in check.result():
                is_other = result.verdict is Verdict.FAIL and not is_needed
                yield replace(result, verdict=Verdict.WARNING) if is_other else result
    if len(urls) > 1:
        yield _describe_choice(state)


def check_name(url: str, name: str, setting: str) -> CheckResult | None:
    """Return the failure to resolve the host of an address; None if it has one."""
    host = urlsplit(url).hostname
    try:
        socket.getaddrinfo(host, urlsplit(url).port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        advice = f"Check {setting} and this host's resolver (/etc/resolv.conf)."
        return CheckResult(Verdict.FAIL, name, f"can't resolve {host}: {error}", advice)
    return None


def _describe_choice(state: AccessPointState) -> CheckResult:
    """Report what the running agent has chosen."""
    message = f"in use: {state.current or 'not chosen yet'}"
    if state.listed is not None:
        message += f"; the portal lists {len(state.listed.points)} ({state.listed.revision})"
    message += f"; {state.moves} moves, {state.failovers} failovers"
    if state.reason:
        message += f", the last because: {state.reason}"
    return CheckResult(Verdict.OK, "access points", message)


def _check_address(
    url: str, config: AgentConfig, identity: Identity | None, *, tls: TLSContexts, clock: Clock
) -> Iterator[CheckResult]:
    is_portal = config.influxdb is None
    name = f"{'portal' if is_portal else 'InfluxDB'} {url}"
    if (unresolved := check_name(url, name, "the address")) is not None:
        yield unresolved
        return
    health_url = f"{url.rstrip('/')}/{'health' if is_portal else 'ping'}"
    try:
        health = _request_health(health_url, config, tls=tls, clock=clock)
    except (*HTTP_ERRORS, ValueError) as error:
        advice = f"Check the network, firewalls and proxies; try: curl -i {health_url}"
        yield CheckResult(Verdict.FAIL, name, f"does not answer: {root_cause(error)}", advice)
        return
    latency = f"{health.latency_seconds * 1000:.0f} ms"
    if health.status in HEALTHY:
        yield CheckResult(Verdict.OK, name, f"answers in {latency}")
    else:
        message = f"{health_url} answered {health.status} in {latency}"
        yield CheckResult(Verdict.FAIL, name, message, "Check the address, then the server.")
    if health.skew_seconds is not None:
        yield _check_clock(url, health.skew_seconds)
    if identity is not None:
        yield _check_identity(url, config, identity, tls=tls)


def _request_health(url: str, config: AgentConfig, *, tls: TLSContexts, clock: Clock) -> _Health:
    """Send a few requests over one connection; the first one, which opens it, is not measured."""
    http = HTTPClient(tls)
    skew_seconds: float | None = None
    latencies: list[float] = []
    try:
        for number in range(1 + LATENCY_REQUESTS):
            sent_at, began = clock(), time.perf_counter()
            response = http.request("GET", url, timeout_seconds=config.request_timeout_seconds)
            latency_seconds = time.perf_counter() - began
            if number:
                latencies.append(latency_seconds)
                date = response.headers.get("Date")
                skew_seconds = _skew(date, sent_at.timestamp() + latency_seconds / 2)
    finally:
        http.close()
    return _Health(response.status, median(latencies), skew_seconds)


def _skew(date: str | None, middle: float) -> float | None:
    """Return how far the server's clock is ahead; None if it sends no date."""
    if not date:
        return None
    try:
        return parsedate_to_datetime(date).timestamp() + DATE_CENTER_SECONDS - middle
    except ValueError:
        return None


def _check_clock(url: str, skew_seconds: float) -> CheckResult:
    name = f"clock against {url}"
    if abs(skew_seconds) > MAX_SKEW_SECONDS:
        side = "behind" if skew_seconds > 0 else "ahead"
        message = f"this host is {abs(skew_seconds):.0f} s {side}"
        return CheckResult(
            Verdict.WARNING, name, message, "Set the clock: timedatectl set-ntp true"
        )
    message = f"differs by less than {max(1.0, abs(skew_seconds)):.0f} s"
    return CheckResult(Verdict.OK, name, message)


def _check_identity(
    url: str, config: AgentConfig, identity: Identity, *, tls: TLSContexts
) -> CheckResult:
    name = f"identity at {url}"
    portal = PortalConnection(
        AccessPoints([url]),
        agent_token=identity.agent_token,
        timeout_seconds=config.request_timeout_seconds,
        tls=tls,
    )
    try:
        portal.desired(-1, wait_seconds=0.0)
    except PortalRefusedError as error:
        if error.http_status not in UNAUTHORIZED:
            advice = "Check that agent and portal have compatible versions."
            return CheckResult(Verdict.FAIL, name, error.message, advice)
        advice = (
            "Samples stay in the buffer. If the message says so, enroll with a new token, which "
            "*Enroll again* on the appliance's page makes: vedette agent enroll --again."
        )
        message = f"the portal refuses this appliance: {error.message}"
        return CheckResult(Verdict.FAIL, name, message, advice)
    except CollectorError as error:
        return CheckResult(Verdict.FAIL, name, error.message, "Try again once the portal is up.")
    finally:
        portal.close()
    return CheckResult(Verdict.OK, name, "accepted")


def _check_write(
    settings: InfluxDBSettings, config: AgentConfig, *, tls: TLSContexts
) -> CheckResult:
    """Check credentials and destination of an InfluxDB, without writing anything."""
    name = f"writing to {settings.url}"
    target = InfluxDBTarget(
        settings,
        appliance=config.name or socket.gethostname(),
        tls=tls,
        timeout_seconds=config.request_timeout_seconds,
        environ=os.environ,
    )
    try:
        response = target.write(settings.url, NO_LINES)
    except OSError as error:  # the secret's file was removed since the settings were checked
        return CheckResult(Verdict.FAIL, name, str(error), "Correct [influxdb].")
    finally:
        target.close()
    if response.status in SUCCESS or response.status == BAD_REQUEST:
        destination = settings.bucket or settings.database
        return CheckResult(Verdict.OK, name, f"{destination} accepts samples")
    if response.status in UNAUTHORIZED:
        advice = "Correct the token, or username and password, of [influxdb]."
    elif response.status == NOT_FOUND:
        advice = "Create it on the server, or correct bucket or database of [influxdb]."
    else:
        advice = "Check the server."
    reason = error_message(response.body, default=response.reason)
    return CheckResult(Verdict.FAIL, name, f"{response.status}: {reason}", advice)
