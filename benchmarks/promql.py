"""PromQL over a fleet's GPUs, beside Prometheus on the same samples.

    rate       the power of each appliance, from a counter of energy: sum by (appliance) (rate(...))
    average    the average temperature of the fleet
    hottest    the ten hottest GPUs at each step
    percentile the 95th percentile of each GPU over five minutes, at its highest
    all        every series

Each is over an hour, with 240 steps, or 60 where all 8,000 series are answered. Both are asked over
HTTP for the whole answer; Vedette is the portal with its embedded store in one process.
"""

import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import click
import requests
from werkzeug.serving import make_server

from benchmarks.shared.document import (
    BenchmarkError,
    Figures,
    Outcome,
    Promise,
    median,
    ratio,
    seconds_of,
)
from benchmarks.shared.filling import submit
from benchmarks.shared.fleet import GPUS, block_of, name_of
from benchmarks.shared.servers import portal_of
from core.clock import utc_now
from core.db import transaction
from portal.app import create_portal
from tenants.users.tokens import create_api_token
from tests.fixtures.prometheus import prometheus
from tests.servers import free_port
from timeseries.points import Batch
from timeseries.store import Store

MOST_TIMES = 1.0
INTERVAL_SECONDS = 15
HOUR_SECONDS = 3600
TOLERANCE = 1e-9
QUESTIONS: dict[str, tuple[str, int]] = {
    "rate": ("sum by (appliance) (rate(gpu_energy_joules[5m]))", 15),
    "average": ("avg(gpu_temperature_celsius)", 15),
    "hottest": ("topk(10, gpu_temperature_celsius)", 15),
    "percentile": ("max(quantile_over_time(0.95, gpu_temperature_celsius[5m]))", 60),
    "all": ("gpu_temperature_celsius", 60),
}
FIELDS = ("energy_joules", "temperature_celsius")

Ask = Callable[[str, dict[str, str]], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The size of the fleet, and how often each question is asked."""

    appliances: int = 1_000
    runs: int = 10


FULL = Plan()
QUICK = Plan(appliances=50, runs=3)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Ask both the same questions, one after the other."""
    end_seconds = int(utc_now().timestamp()) // INTERVAL_SECONDS * INTERVAL_SECONDS - 60
    samples = _samples(plan)
    answers: list[dict[str, bytes]] = []
    figures: list[Figures] = []
    for serving in (_vedette, _prometheus):
        click.echo(f"filling and asking{serving.__name__.replace('_', ' ')}", err=True)
        with serving(folder, samples, end_seconds) as ask:
            asked, seconds = _asked(plan, ask, end_seconds)
            answers.append(asked)
            figures.append(seconds)
    _compare(*answers)
    ours, theirs = figures
    ratios = {name: ratio(ours[name], theirs[name]) for name in QUESTIONS}
    promises = [
        Promise(f"{name}, beside Prometheus", value, MOST_TIMES, "times")
        for name, value in ratios.items()
    ]
    results = {"vedette": ours, "prometheus": theirs, "ratios_to_prometheus": ratios}
    settings = {"series": plan.appliances * GPUS, "questions": dict(QUESTIONS)}
    return Outcome(results, promises, settings)


def _samples(plan: Plan) -> dict[tuple[str, str, str], list[float]]:
    """Return an hour and a quarter of values by field, appliance and GPU."""
    chance = Random(1)  # noqa: S311 - samples, not secrets
    samples = {}
    steps = (HOUR_SECONDS + 900) // INTERVAL_SECONDS
    for appliance in range(plan.appliances):
        for gpu in range(GPUS):
            key = name_of(appliance), str(gpu)
            watts, celsius = chance.uniform(100, 700), chance.uniform(30, 80)
            samples["energy_joules", *key] = [
                round(watts * INTERVAL_SECONDS * step + chance.uniform(0, 900), 1)
                for step in range(steps)
            ]
            samples["temperature_celsius", *key] = [
                round(celsius + 5 * math.sin(step / 20) + chance.random(), 2)
                for step in range(steps)
            ]
    return samples


def _asked(plan: Plan, ask: Ask, end_seconds: int) -> tuple[dict[str, bytes], Figures]:
    """Return the last answer and the median time of each question."""
    answers, figures = {}, {}
    for name, (query, step) in QUESTIONS.items():
        parameters = {
            "query": query,
            "start": str(end_seconds - HOUR_SECONDS + step),
            "end": str(end_seconds),
            "step": str(step),
        }
        answers[name] = ask("query_range", parameters)
        seconds = [
            seconds_of(lambda parameters=parameters: ask("query_range", parameters))  # type: ignore[misc]
            for _ in range(plan.runs)
        ]
        figures[name] = median(seconds)
    return answers, figures


def _compare(ours: dict[str, bytes], theirs: dict[str, bytes]) -> None:
    """Check that both have answered the same."""
    for name in QUESTIONS:
        own, wanted = (_total(answers[name]) for answers in (ours, theirs))
        if own[0] != wanted[0] or not math.isclose(own[1], wanted[1], rel_tol=TOLERANCE):
            raise BenchmarkError(f"{name}: {own}, and Prometheus {wanted} (values, their sum)")


def _total(answer: bytes) -> tuple[int, float]:
    rows = json.loads(answer)["data"]["result"]
    values = [float(value) for row in rows for _, value in row["values"]]
    return len(values), math.fsum(values)


@contextmanager
def _vedette(
    folder: Path, samples: dict[tuple[str, str, str], list[float]], end_seconds: int
) -> Iterator[Ask]:
    with portal_of(folder / "portal", requests_per_second_per_user=1_000.0) as portal:
        with transaction(portal.sessions) as session:
            _, secret = create_api_token(session, portal.scope, name="benchmark", now=utc_now())
        _fill(portal.store, portal.scope.require_tenant(), samples, end_seconds)
        app = create_portal(portal.settings, sessions=portal.sessions, store=portal.store)
        server = make_server("127.0.0.1", free_port(), app, threaded=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.port}/api/v1/prometheus"
            yield _asking(url, {"Authorization": f"Bearer {secret}"})
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def _fill(
    store: Store,
    tenant_id: str,
    samples: dict[tuple[str, str, str], list[float]],
    end_seconds: int,
) -> None:
    appliances = sorted({appliance for _, appliance, _ in samples})
    series = [{"gpu": str(gpu)} for gpu in range(GPUS)]
    for appliance in appliances:
        columns = {
            field: [value for gpu in range(GPUS) for value in samples[field, appliance, str(gpu)]]
            for field in FIELDS
        }
        steps = len(samples[FIELDS[0], appliance, "0"])
        times_ns = [
            (end_seconds - (steps - 1 - step) * INTERVAL_SECONDS) * 10**9 for step in range(steps)
        ]
        batch = Batch((block_of("gpu", series, columns=columns, times_ns=times_ns),))
        submit(store, [({"tenant": tenant_id, "appliance": appliance}, batch)])


@contextmanager
def _prometheus(
    folder: Path, samples: dict[tuple[str, str, str], list[float]], end_seconds: int
) -> Iterator[Ask]:
    steps = len(next(iter(samples.values())))
    series = {
        f'gpu_{field}{{appliance="{appliance}",gpu="{gpu}"}}': [
            ((end_seconds - (steps - 1 - step) * INTERVAL_SECONDS) * 1000, value)
            for step, value in enumerate(values)
        ]
        for (field, appliance, gpu), values in samples.items()
    }
    with prometheus(folder, series=series) as url:
        del series
        yield _asking(url, {})


def _asking(url: str, headers: dict[str, str]) -> Ask:
    session = requests.Session()
    # Neither spends its time on compression.
    session.headers.update({**headers, "Accept-Encoding": "identity"})

    def ask(path: str, parameters: dict[str, str]) -> bytes:
        answer = session.post(f"{url}/api/v1/{path}", data=parameters, timeout=120)
        if not answer.ok:
            raise BenchmarkError(f"{parameters['query']}: {answer.text[:300]}")
        return answer.content

    return ask
