"""Fifty rules over a fleet's GPUs, beside Prometheus on the same samples; and their notifications.

One appliance of a hundred breaches every rule. Vedette evaluates all rules as its scheduler does,
with the state of alerts in SQLite; Prometheus is asked the same expressions one after the other,
without keeping any state, from a block that promtool made of the same samples. Both are warm, and
each runs while the other is idle. CPU time is that of the whole process.

Then a scheduler that evaluates every second notifies a webhook of single alerts, and many alerts
that fire at once are delivered in groups.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from ipaddress import ip_network
from itertools import product
from pathlib import Path
from typing import Any

import click
import requests
from sqlalchemy import select
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from alerting.evaluation.evaluator import Evaluator, due_rules
from alerting.language.text import parse_expression
from alerting.models import Rule
from alerting.notification.models import Notification
from alerting.notification.outbox import drain_recipient, due_recipients
from alerting.notification.policies import save_policy
from alerting.notification.receivers import create_receiver
from alerting.notification.senders.notify import WebhookSender
from alerting.notification.senders.webhooks import AddressPolicy
from alerting.rules.service import rule_values
from alerting.states import NotificationState, ReceiverKind
from benchmarks.shared.document import (
    BenchmarkError,
    Figures,
    Outcome,
    Promise,
    median,
    ratio,
    rounded,
    seconds_of,
)
from benchmarks.shared.filling import submit
from benchmarks.shared.fleet import GPUS, block_of, name_of
from benchmarks.shared.meter import cpu_seconds
from benchmarks.shared.servers import Portal, portal_of
from core.clock import to_ns, utc_now
from core.db import transaction
from core.secretbox import SecretBox
from scheduler.loops import Scheduler
from tests.fixtures.polling import eventually
from tests.fixtures.prometheus import prometheus_process
from tests.fixtures.serving import Serving
from timeseries.points import Batch

FIELDS = ("temperature_celsius", "power_watts", "utilization_percent", "fan_percent", "load_ratio")
FUNCTIONS = ("avg", "max", "min", "last", "stddev")
WINDOWS = ("1m", "5m")
EXPRESSIONS = list(product(FIELDS, FUNCTIONS, WINDOWS))
SAMPLE_SECONDS = 10
SPAN = timedelta(minutes=6)
LEVEL, HOT = 1000.0, 2000.0
HOT_OF = 100
MOST_TIMES = 1.0
MOST_LATENCY_SECONDS = 2.0
NEWEST = f"last(gpu.temperature_celsius) over 1m by gpu > {LEVEL:g}"
SETTINGS: dict[str, Any] = {
    "rule_pack": False,
    "webhook_allowed_networks": "127.0.0.0/8",
    "evaluation_interval_seconds": 1.0,
    "notification_interval_seconds": 0.5,
}
LOOPBACK = AddressPolicy(allowed=(ip_network("127.0.0.0/8"),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The size of the fleet, the number of evaluations, and the number of notified alerts."""

    appliances: int = 1_000
    rounds: int = 10
    latencies: int = 30
    alerts: int = 10_000


FULL = Plan()
QUICK = Plan(appliances=50, rounds=3, latencies=3, alerts=500)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Measure evaluation, latency and a storm."""
    now = utc_now()
    with portal_of(folder / "rules", **SETTINGS) as portal:
        ours = _evaluate(portal, plan, now=now)
    theirs = _ask_prometheus(folder, plan, now=now)
    with portal_of(folder / "latency", **SETTINGS) as portal:
        latency = _latency(portal, plan)
    with portal_of(folder / "storm", **SETTINGS) as portal:
        storm = _storm(portal, plan)
    ratios = {figure: ratio(ours[figure], theirs[figure]) for figure in ours}
    promises = [
        Promise(f"{figure} of a round of all rules, beside Prometheus", value, MOST_TIMES, "times")
        for figure, value in ratios.items()
    ]
    name = "from a sample to its notification, longest"
    promises.append(Promise(name, latency["longest_seconds"], MOST_LATENCY_SECONDS, "s"))
    name = "alerts that fire together and are not delivered"
    promises.append(Promise(name, storm["lost"], 0.0, "alerts"))
    results = {"vedette": ours, "prometheus": theirs, "ratios_to_prometheus": ratios}
    settings = {"rules": len(EXPRESSIONS), "gpus": GPUS}
    return Outcome({**results, "latency": latency, "storm": storm}, promises, settings)


def _value(appliance: int, gpu: int, *, field: int, step: int) -> float:
    base = HOT if appliance % HOT_OF == 0 else 0.0
    # Hot GPUs also vary by more than the level, for the standard deviation.
    return base * (1 + 2 * (step % 2)) + (appliance * 7 + gpu * 3 + field + step) % 80


def _times(now: datetime) -> list[datetime]:
    steps = SPAN // timedelta(seconds=SAMPLE_SECONDS)
    return [now - SPAN + timedelta(seconds=SAMPLE_SECONDS * (step + 1)) for step in range(steps)]


def _add_rules(
    portal: Portal, expressions: Sequence[str], *, receiver_ids: Sequence[str] = ()
) -> list[Rule]:
    tenant_id = portal.scope.require_tenant()
    rules = []
    for text in expressions:
        request = replace(parse_expression(text), name=text[:100], receiver_ids=receiver_ids)
        values = rule_values(request)
        rules.append(Rule(tenant_id=tenant_id, created_at=utc_now(), **values))
    with transaction(portal.sessions) as session:
        session.add_all(rules)
    return rules


def _hot_gpus(numbers: Sequence[int], now: datetime) -> Batch:
    """Return a temperature above the level for each of an appliance's GPUs."""
    series = [{"gpu": str(number)} for number in numbers]
    columns = {"temperature_celsius": [HOT] * len(numbers)}
    return Batch((block_of("gpu", series, columns=columns, times_ns=[to_ns(now)]),))


def _evaluate(portal: Portal, plan: Plan, *, now: datetime) -> Figures:
    click.echo("filling the store", err=True)
    times_ns = [to_ns(at) for at in _times(now)]
    series = [{"gpu": str(gpu)} for gpu in range(GPUS)]
    steps = range(len(times_ns))
    for appliance in range(plan.appliances):
        columns = {
            field: [
                _value(appliance, gpu, field=n, step=step) for gpu in range(GPUS) for step in steps
            ]
            for n, field in enumerate(FIELDS)
        }
        batch = Batch((block_of("gpu", series, columns=columns, times_ns=times_ns),))
        submit(portal.store, [(portal.identity(appliance), batch)])
    texts = [
        f"{name}(gpu.{field}) over {window} by gpu > {LEVEL:g}"
        for field, name, window in EXPRESSIONS
    ]
    rules = _add_rules(portal, texts)
    evaluator = Evaluator(sessions=portal.sessions, store=portal.store)
    evaluator.evaluate(rules, now=now + timedelta(milliseconds=1))  # raises the alerts
    instants = (now + timedelta(milliseconds=2 + number) for number in range(plan.rounds + 1))

    def evaluate() -> None:
        at = next(instants)
        due = due_rules(portal.sessions, now=at)[portal.scope.require_tenant()]
        summary = evaluator.evaluate(due, now=at)
        if summary.failed or summary.transitions:
            raise BenchmarkError(f"an evaluation failed or moved alerts: {summary}")

    click.echo("evaluating", err=True)
    return _rounds(evaluate, os.getpid(), plan.rounds)


def _rounds(action: Callable[[], None], pid: int, count: int) -> Figures:
    """Act once to warm up, and then again and again; return the medians of time and CPU time."""
    action()
    wall, cpu = [], []
    for _ in range(count):
        used = cpu_seconds(pid)
        wall.append(seconds_of(action))
        cpu.append(cpu_seconds(pid) - used)
    return {"wall_seconds": median(wall), "cpu_seconds": median(cpu)}


def _ask_prometheus(folder: Path, plan: Plan, *, now: datetime) -> Figures:
    click.echo("asking Prometheus", err=True)
    with (
        prometheus_process(folder, series=_series(plan, now)) as (url, process),
        requests.Session() as session,
    ):

        def ask() -> None:
            for field, name, window in EXPRESSIONS:
                query = f"{name}_over_time(gpu_{field}[{window}]) > {LEVEL:g}"
                parameters = {"query": query, "time": f"{now.timestamp():.3f}"}
                reply = session.get(f"{url}/api/v1/query", params=parameters, timeout=60)
                count = len(reply.json()["data"]["result"])
                if count != -(-plan.appliances // HOT_OF) * GPUS:
                    raise BenchmarkError(f"Prometheus has {count} series above the level")

        return _rounds(ask, process.pid, plan.rounds)


def _series(plan: Plan, now: datetime) -> dict[str, list[tuple[int, float]]]:
    """Return the same samples as series of Prometheus."""
    times_ms = [round(at.timestamp() * 1000) for at in _times(now)]
    return {
        f'gpu_{field}{{appliance="{name_of(appliance)}",gpu="{gpu}"}}': [
            (at_ms, _value(appliance, gpu, field=number, step=step))
            for step, at_ms in enumerate(times_ms)
        ]
        for number, field in enumerate(FIELDS)
        for appliance, gpu in product(range(plan.appliances), range(GPUS))
    }


@contextmanager
def _webhook(portal: Portal) -> Iterator[tuple[str, list[tuple[float, dict[str, Any]]]]]:
    """Run a receiver; give its ID, and what arrives with its time."""
    arrived: list[tuple[float, dict[str, Any]]] = []

    async def take(request: Request) -> Response:
        arrived.append((time.perf_counter(), await request.json()))
        return Response(status_code=204)

    with Serving(Starlette(routes=[Route("/hook", take, methods=["POST"])])) as url:
        with transaction(portal.sessions) as session:
            receiver, _ = create_receiver(
                session,
                portal.scope,
                name="hook",
                kind=ReceiverKind.WEBHOOK,
                target=f"{url}/hook",
                box=SecretBox.of(portal.settings),
                now=utc_now(),
            )
        yield receiver.id, arrived


def _latency(portal: Portal, plan: Plan) -> dict[str, float | None]:
    """Return how long a sample's notification takes at an evaluation each second."""
    click.echo("measuring the latency", err=True)
    took = []
    with _webhook(portal) as (receiver_id, arrived):
        _add_rules(portal, [NEWEST], receiver_ids=[receiver_id])
        scheduler = Scheduler(portal.settings, sessions=portal.sessions, store=portal.store)
        scheduler.start()
        try:
            for number in range(plan.latencies):
                time.sleep(number * 0.137 % 1.0)  # at any time between two evaluations
                before, began = len(arrived), time.perf_counter()
                submit(portal.store, [(portal.identity(0), _hot_gpus([number], utc_now()))])
                eventually(
                    lambda before=before: len(arrived) > before,  # type: ignore[misc]
                    what="a notification",
                )
                took.append(arrived[-1][0] - began)
        finally:
            scheduler.stop()
    return {"median_seconds": median(took), "longest_seconds": rounded(max(took))}


def _storm(portal: Portal, plan: Plan) -> dict[str, float]:
    """Return how long many alerts that fire at once take to evaluate and to deliver."""
    click.echo("delivering a storm", err=True)
    now = utc_now()
    gpus = (range(min(GPUS, plan.alerts - start)) for start in range(0, plan.alerts, GPUS))
    submit(
        portal.store,
        ((portal.identity(number), _hot_gpus(group, now)) for number, group in enumerate(gpus)),
    )
    with _webhook(portal) as (_receiver_id, arrived):
        rules = _add_rules(portal, [NEWEST])
        with transaction(portal.sessions) as session:
            policy = {"receivers": ["hook"], "group_by": ["rule"], "group_wait": "0s"}
            save_policy(session, portal.scope, policy | {"group_interval": "0s"}, now=now)
        evaluator = Evaluator(sessions=portal.sessions, store=portal.store)
        evaluate_seconds = seconds_of(
            lambda: evaluator.evaluate(rules, now=now + timedelta(seconds=1))
        )
        deliver_seconds = seconds_of(lambda: _drain(portal))
    payloads = [payload for _, payload in arrived]
    alerts = {
        str(alert["alert_id"]) for payload in payloads for alert in payload.get("alerts", [payload])
    }
    return {
        "alerts": plan.alerts,
        "evaluate_seconds": rounded(evaluate_seconds),
        "deliver_seconds": rounded(deliver_seconds),
        "messages": len(payloads),
        "lost": float(plan.alerts - len(alerts)),
    }


def _drain(portal: Portal) -> None:
    """Send notifications until none waits."""

    def soon() -> datetime:
        return utc_now() + timedelta(seconds=2)

    senders = {
        ReceiverKind.WEBHOOK: WebhookSender(
            10.0, box=SecretBox.of(portal.settings), policy=LOOPBACK
        )
    }
    waiting = select(Notification.id).where(Notification.state == NotificationState.WAITING)
    is_waiting = True
    while is_waiting:
        for recipient in due_recipients(portal.sessions, now=soon()):
            drain_recipient(portal.sessions, senders, recipient, clock=soon)
        with transaction(portal.sessions) as session:
            is_waiting = session.scalar(waiting.limit(1)) is not None
