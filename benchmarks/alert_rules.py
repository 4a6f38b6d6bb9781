"""Fifty rules over a fleet's GPUs, beside Prometheus on the same samples; and their notifications.

    python -m benchmarks.alert_rules [--quick] [--output FILE]

One appliance of a hundred breaches every rule. Vedette evaluates all rules as its scheduler does,
with the state of alerts in SQLite; Prometheus is asked the same expressions one after the other,
without keeping any state, from a block that promtool made of the same samples. Both are warm, and
each runs while the other is idle. CPU time is that of the whole process.

Then a scheduler that evaluates every second notifies a webhook of single alerts, and many alerts
that fire at once are delivered in groups.
"""

import json
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlencode

import click
from sqlalchemy import select

from alerting.evaluation.due_rules import due_rules
from alerting.evaluation.evaluator import Evaluator
from alerting.language.text import parse_expression
from alerting.models import Receiver, Rule
from alerting.notification.models import Notification
from alerting.notification.outbox import drain_recipient, due_recipients
from alerting.notification.policies import save_policy
from alerting.notification.receivers import create_receiver
from alerting.notification.senders.notify import WebhookSender
from alerting.notification.senders.webhooks import AddressPolicy
from alerting.rules.service import rule_values
from alerting.states import NotificationState, ReceiverKind
from benchmarks.figures import Promise, document, median, ratio, rounded, write_document
from benchmarks.meter import cpu_ns
from benchmarks.processes import (
    BenchmarkError,
    answers,
    free_port,
    get_json,
    require_program,
    running,
    wait_until,
)
from core.clock import NS_PER_SECOND, to_ns, utc_now
from core.db import (
    Base,
    SessionFactory,
    create_database_engine,
    create_session_factory,
    transaction,
)
from core.secretbox import SecretBox
from core.settings import ServerSettings
from scheduler.loops import Scheduler
from tenants.models import Role
from tenants.scope import Scope
from tenants.tenants import create_tenant
from timeseries.open_store import open_store
from timeseries.points import Batch, Point
from timeseries.store import Store, write

GPUS = 8
FIELDS = ("temperature_celsius", "power_watts", "utilization_percent", "fan_percent", "load_ratio")
FUNCTIONS = ("avg", "max", "min", "last", "stddev")
WINDOWS = ("1m", "5m")
SAMPLE_SECONDS = 10
SPAN = timedelta(minutes=6)
LEVEL, HOT = 1000.0, 2000.0
HOT_OF = 100
MOST_TIMES = 1.0
MOST_LATENCY_SECONDS = 2.0
NEWEST = f"last(gpu.temperature_celsius) over 1m by gpu > {LEVEL:g}"
LOOPBACK = AddressPolicy(allowed=(ip_network("127.0.0.0/8"),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The size of the fleet, the number of evaluations, and the number of notified alerts."""

    appliances: int
    rounds: int
    latencies: int
    alerts: int


FULL = Plan(appliances=1_000, rounds=10, latencies=30, alerts=10_000)
QUICK = Plan(appliances=50, rounds=3, latencies=3, alerts=500)


@dataclass(frozen=True, slots=True)
class Portal:
    """A database with one tenant, a store, and a user of the tenant."""

    sessions: SessionFactory
    store: Store
    scope: Scope

    @property
    def tenant(self) -> str:
        """The tenant's ID."""
        return self.scope.require_tenant()


def measure(plan: Plan) -> dict[str, object]:
    """Measure all of it; return the document."""
    started_at = utc_now()
    with TemporaryDirectory(prefix="vedette-bench-") as name:
        folder = Path(name)
        with _portal(folder / "rules") as portal:
            ours = _evaluate(portal, plan, now=started_at)
        theirs = _ask_prometheus(folder, plan, now=started_at)
        with _portal(folder / "latency") as portal:
            latency = _latency(folder / "latency", portal, plan)
        with _portal(folder / "storm") as portal:
            storm = _storm(folder / "storm", portal, plan)
    return document(
        "alert_rules",
        started_at=started_at,
        settings=asdict(plan) | {"rules": len(_expressions()), "gpus": GPUS},
        results={"vedette": ours, "prometheus": theirs, "latency": latency, "storm": storm},
        promises=[
            Promise(
                name=f"{figure} of a round of all rules, beside Prometheus",
                bound=MOST_TIMES,
                measured=ratio(ours[figure], theirs[figure]),
                unit="times",
            )
            for figure in ("wall_seconds", "cpu_seconds")
        ]
        + [
            Promise(
                name="from a sample to its notification, longest",
                bound=MOST_LATENCY_SECONDS,
                measured=latency["longest_seconds"],
                unit="s",
            ),
            Promise(
                name="alerts that fire together and are not delivered",
                bound=0.0,
                measured=storm["lost"],
                unit="alerts",
            ),
        ],
    )


def _expressions() -> list[tuple[str, str, str]]:
    return [(name, field, window) for field in FIELDS for name in FUNCTIONS for window in WINDOWS]


def _value(appliance: int, gpu: int, field: int, step: int) -> float:
    base = HOT if appliance % HOT_OF == 0 else 0.0
    # Hot ones also vary by more than the level, for the standard deviation.
    return base * (1 + 2 * (step % 2)) + (appliance * 7 + gpu * 3 + field + step) % 80


def _samples(plan: Plan, now: datetime) -> Iterator[tuple[int, int, datetime]]:
    """Yield appliance, step and time of all samples."""
    steps = SPAN // timedelta(seconds=SAMPLE_SECONDS)
    for appliance in range(plan.appliances):
        for step in range(steps):
            yield appliance, step, now - SPAN + timedelta(seconds=SAMPLE_SECONDS * (step + 1))


@contextmanager
def _portal(folder: Path) -> Iterator[Portal]:
    folder.mkdir()
    engine = create_database_engine(f"sqlite:///{folder / 'vedette.db'}")
    Base.metadata.create_all(engine)
    sessions = create_session_factory(engine)
    with transaction(sessions) as session:
        tenant = create_tenant(session, slug="acme", name="Acme", now=utc_now()).id
    store = open_store(f"duckdb:///{folder / 'samples.duckdb'}")
    try:
        yield Portal(sessions, store, Scope(user_id="", role=Role.ADMIN, tenant_id=tenant))
    finally:
        store.close()
        engine.dispose()


def _evaluate(portal: Portal, plan: Plan, *, now: datetime) -> dict[str, float]:
    click.echo("filling the store", err=True)
    points: dict[int, list[Point]] = {}
    for appliance, step, at in _samples(plan, now):
        for gpu in range(GPUS):
            fields = {field: _value(appliance, gpu, n, step) for n, field in enumerate(FIELDS)}
            point = Point("gpu", {"gpu": str(gpu)}, fields, to_ns(at))
            points.setdefault(appliance, []).append(point)
    for appliance, appliance_points in points.items():
        identity = {"tenant": portal.tenant, "appliance": f"gpu-{appliance:05}"}
        if portal.store.submit(Batch.of(appliance_points), identity=identity).result():
            raise BenchmarkError("the store refused samples")
    rules = _add_rules(
        portal,
        [
            f"{name}(gpu.{field}) over {window} by gpu > {LEVEL:g}"
            for name, field, window in _expressions()
        ],
    )
    evaluator = Evaluator(sessions=portal.sessions, store=portal.store)
    evaluator.evaluate(rules, now=now + timedelta(milliseconds=1))  # raises the alerts
    click.echo("evaluating", err=True)
    wall, cpu = [], []
    for number in range(plan.rounds):
        at = now + timedelta(milliseconds=2 + number)
        began, used = time.perf_counter(), time.process_time()
        rules = due_rules(portal.sessions, now=at)[portal.tenant]
        summary = evaluator.evaluate(rules, now=at)
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
        if summary.failed or summary.transitions:
            raise BenchmarkError(f"an evaluation failed or moved alerts: {summary}")
    return _round(wall, cpu)


def _add_rules(
    portal: Portal, expressions: Sequence[str], *, receiver_ids: Sequence[str] = ()
) -> list[Rule]:
    rules = [
        Rule(
            tenant_id=portal.tenant,
            created_at=utc_now(),
            **rule_values(
                replace(parse_expression(text), name=text[:100], receiver_ids=receiver_ids)
            ),
        )
        for text in expressions
    ]
    with transaction(portal.sessions) as session:
        session.add_all(rules)
    return rules


def _ask_prometheus(folder: Path, plan: Plan, *, now: datetime) -> dict[str, float]:
    program = require_program("prometheus", package="prometheus")
    promtool = require_program("promtool", package="prometheus")
    click.echo("making Prometheus's block", err=True)
    text, data = folder / "samples.txt", folder / "prometheus"
    with text.open("w", encoding="utf-8") as file:
        for number, field in enumerate(FIELDS):
            file.write(f"# TYPE gpu_{field} gauge\n")
            for appliance, step, at in _samples(plan, now):
                for gpu in range(GPUS):
                    labels = f'appliance="gpu-{appliance:05}",gpu="{gpu}"'
                    value = _value(appliance, gpu, number, step)
                    file.write(f"gpu_{field}{{{labels}}} {value} {at.timestamp():.3f}\n")
        file.write("# EOF\n")
    command = [promtool, "tsdb", "create-blocks-from", "openmetrics", "-q", str(text), str(data)]
    subprocess.run(command, check=True, capture_output=True)
    (folder / "prometheus.yml").write_text("global: {}\n")
    url = f"http://127.0.0.1:{free_port()}"
    argv = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={data}",
        f"--web.listen-address={url.removeprefix('http://')}",
    ]
    queries = [
        urlencode(
            {
                "query": f"{name}_over_time(gpu_{field}[{window}]) > {LEVEL:g}",
                "time": f"{now.timestamp():.3f}",
            }
        )
        for name, field, window in _expressions()
    ]
    wall, cpu = [], []
    with running(argv, log_path=folder / "prometheus.log") as pid:
        wait_until(lambda: answers(f"{url}/-/ready"), what="Prometheus")
        click.echo("asking Prometheus", err=True)
        for _ in range(plan.rounds + 1):
            began, used = time.perf_counter(), cpu_ns(pid)
            replies = [get_json(f"{url}/api/v1/query?{query}") for query in queries]
            wall.append(time.perf_counter() - began)
            cpu.append((cpu_ns(pid) - used) / NS_PER_SECOND)
            counts = {len(reply["data"]["result"]) for reply in replies}
            if counts != {-(-plan.appliances // HOT_OF) * GPUS}:
                raise BenchmarkError(f"Prometheus found {counts} series above the level")
    return _round(wall[1:], cpu[1:])


def _round(wall: list[float], cpu: list[float]) -> dict[str, float]:
    return {"wall_seconds": median(wall) or 0.0, "cpu_seconds": median(cpu) or 0.0}


@contextmanager
def _webhook() -> Iterator[tuple[str, list[tuple[float, dict[str, object]]]]]:
    """Run a receiver of webhooks; give its address, and what arrives with its time."""
    arrived: list[tuple[float, dict[str, object]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            arrived.append((time.perf_counter(), json.loads(body)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", free_port()), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", arrived
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _watch(portal: Portal, url: str, *, box: SecretBox) -> Receiver:
    """Add a receiver and a rule on the newest temperature of each GPU."""
    with transaction(portal.sessions) as session:
        receiver, _ = create_receiver(
            session,
            portal.scope,
            name="hook",
            kind=ReceiverKind.WEBHOOK,
            target=url,
            box=box,
            now=utc_now(),
        )
    return receiver


def _latency(folder: Path, portal: Portal, plan: Plan) -> dict[str, float]:
    """Return how long a sample's notification takes at an evaluation each second."""
    click.echo("measuring the latency", err=True)
    settings = ServerSettings(
        data_dir=folder,
        rule_pack=False,
        webhook_allowed_networks="127.0.0.0/8",
        evaluation_interval_seconds=1.0,
        notification_interval_seconds=0.5,
    )
    took = []
    with _webhook() as (url, arrived):
        receiver = _watch(portal, url, box=SecretBox.of(settings))
        _add_rules(portal, [NEWEST], receiver_ids=[receiver.id])
        scheduler = Scheduler(settings, sessions=portal.sessions, store=portal.store)
        scheduler.start()
        try:
            for number in range(plan.latencies):
                time.sleep(number * 0.137 % 1.0)  # at any time between two evaluations
                before = len(arrived)
                point = Point(
                    "gpu", {"gpu": str(number)}, {"temperature_celsius": HOT}, to_ns(utc_now())
                )
                began = time.perf_counter()
                identity = {"tenant": portal.tenant, "appliance": "gpu-00000"}
                write(portal.store, [point], identity=identity)
                wait_until(lambda before=before: len(arrived) > before, what="a notification")  # type: ignore[misc]
                took.append(arrived[-1][0] - began)
        finally:
            scheduler.stop()
    return {"median_seconds": median(took) or 0.0, "longest_seconds": rounded(max(took))}


def _storm(folder: Path, portal: Portal, plan: Plan) -> dict[str, float]:
    """Return how long many alerts that fire at once take to evaluate and to deliver."""
    click.echo("delivering a storm", err=True)
    now = utc_now()
    box = SecretBox.of(ServerSettings(data_dir=folder))
    for start in range(0, plan.alerts, GPUS):
        points = [
            Point("gpu", {"gpu": str(gpu)}, {"temperature_celsius": HOT}, to_ns(now))
            for gpu in range(min(GPUS, plan.alerts - start))
        ]
        identity = {"tenant": portal.tenant, "appliance": f"gpu-{start:05}"}
        portal.store.submit(Batch.of(points), identity=identity).result()
    with _webhook() as (url, arrived):
        _watch(portal, url, box=box)
        rules = _add_rules(portal, [NEWEST])
        with transaction(portal.sessions) as session:
            policy = {"receivers": ["hook"], "group_by": ["rule"], "group_wait": "0s"}
            save_policy(session, portal.scope, policy | {"group_interval": "0s"}, now=now)
        began = time.perf_counter()
        evaluator = Evaluator(sessions=portal.sessions, store=portal.store)
        evaluator.evaluate(rules, now=now + timedelta(seconds=1))
        evaluated = time.perf_counter()
        senders = {ReceiverKind.WEBHOOK: WebhookSender(10.0, box=box, policy=LOOPBACK)}
        waiting = select(Notification.id).where(Notification.state == NotificationState.WAITING)

        def soon() -> datetime:
            return utc_now() + timedelta(seconds=2)

        is_waiting = True
        while is_waiting:
            for recipient in due_recipients(portal.sessions, now=soon()):
                drain_recipient(portal.sessions, senders, recipient, clock=soon)
            with transaction(portal.sessions) as session:
                is_waiting = session.scalar(waiting.limit(1)) is not None
        delivered = time.perf_counter()
    payloads = [payload for _, payload in arrived]
    alerts = {
        str(alert["alert_id"])
        for payload in payloads
        for alert in payload.get("alerts", [payload])  # type: ignore[attr-defined]
    }
    return {
        "alerts": plan.alerts,
        "evaluate_seconds": rounded(evaluated - began),
        "deliver_seconds": rounded(delivered - evaluated),
        "messages": len(payloads),
        "lost": float(plan.alerts - len(alerts)),
    }


@click.command()
@click.option("--quick", is_flag=True, help="A small fleet: to see that it runs.")
@click.option("--output", type=click.Path(path_type=Path), help="File for the JSON document.")
def main(*, quick: bool, output: Path | None) -> None:
    """Print the figures as JSON."""
    write_document(measure(QUICK if quick else FULL), output)


if __name__ == "__main__":
    main()
