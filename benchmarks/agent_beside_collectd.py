"""The agent beside collectd: what reading a host once a second and sending it costs.

    agent              the plugins of the host, every one reading all there is each second, as
                       collectd's do; sends to a real gateway
    agent_to_sink      the same, to a sink such as collectd has
    agent_defaults     the plugins of the host at their defaults; to the gateway
    agent_as_enrolled  all plugins at their defaults and an executor, as after enrollment
    collectd           the same metrics, sent by write_http to a sink
    psutil_loop        the floor: reads with psutil, and does nothing with it

All contenders run at once, so that each meets the same caches, clocks and neighbors; a repetition
starts all of them anew. Their CPU time is compared within a repetition, then the median is taken.
"""

import gzip
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from benchmarks.shared.collectd import collectd_command
from benchmarks.shared.document import BenchmarkError, Figures, Outcome, Promise, compared, rounded
from benchmarks.shared.meter import Usage, read_usage, spent
from benchmarks.shared.servers import enroll_agent, python, stored_samples
from collector.data_dir import Identity, save_identity
from core.clock import to_ns, utc_now
from tests.deployment import Deployment, agent_of, make_deployment, serving
from tests.fixtures.serving import Serving
from tests.servers import running
from timeseries.lineprotocol.parser import parse

AGENT, AGENT_TO_SINK = "agent", "agent_to_sink"
COLLECTD, PSUTIL_LOOP = "collectd", "psutil_loop"
CPU, MEMORY = "cpu_percent_of_a_core", "resident_mebibytes"
MOST_CPU_OF_COLLECTD = 1.5
MOST_MEBIBYTES = 60.0
DELIVERY_SECONDS = 8.0
OTHER_PLUGINS = (
    *("nvml", "gpu_processes", "amdgpu", "containers", "speedtest", "inventory", "exec"),
    "collectd_python",
)
EVERY_SECOND = "interval_seconds = 1\n"
HOST_ONLY = f'{EVERY_SECOND}executor = "none"\n' + "".join(
    f"\n[plugins.{name}]\nenabled = false\n" for name in OTHER_PLUGINS
)
# collectd reads every process each time; the agent does so every ten seconds by default.
LIKE_COLLECTD = f"{HOST_ONLY}\n[plugins.processes]\nstates_interval_seconds = 0\n"
TO_GATEWAY = {
    AGENT: LIKE_COLLECTD,
    "agent_as_enrolled": EVERY_SECOND,
    "agent_defaults": HOST_ONLY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The length and the number of measurements."""

    warm_up_seconds: float = 10.0
    window_seconds: float = 60.0
    repetitions: int = 3


FULL = Plan()
QUICK = Plan(window_seconds=15.0, repetitions=1)


@dataclass(slots=True)
class Sink:
    """Takes what agents and collectd send, counts it and forgets it; bytes as they were sent."""

    requests: int = 0
    body_bytes: int = 0
    samples: int = 0

    def serving(self) -> Serving:
        """Return a server of the sink, for a block."""
        everything = Route("/{path:path}", self._take, methods=["GET", "POST"])
        return Serving(Starlette(routes=[everything]))

    async def _take(self, request: Request) -> Response:
        if request.method == "GET":
            return JSONResponse({})
        body = await request.body()
        is_zipped = request.headers.get("Content-Encoding") == "gzip"
        samples = _samples_in(request.url.path, gzip.decompress(body) if is_zipped else body)
        if samples is not None:
            self.requests += 1
            self.body_bytes += len(body)
            self.samples += samples
        return Response(status_code=204)

    def counts(self) -> tuple[int, int, int]:
        """Return the counts until now: requests, bytes of bodies, samples."""
        return self.requests, self.body_bytes, self.samples


def _samples_in(path: str, body: bytes) -> int | None:
    """Return how many samples a request has; None where it is not one of samples."""
    if path == "/api/v2/write":
        points = parse(body, default_time_ns=to_ns(utc_now())).points
        return sum(len(point.fields) for point in points)
    if path == "/collectd":
        values = [value for entry in json.loads(body) for value in entry.get("values", ())]
        return len(values) - values.count(None)
    return None


@dataclass(slots=True)
class Contender:
    """A process under measure, and who counts its samples: a sink, or the gateway by appliance."""

    pid: int
    sink: Sink | None = None
    appliance_id: str = ""
    usages: list[Usage] = field(default_factory=list)
    counts: list[tuple[int, int, int]] = field(default_factory=list)

    def read(self) -> None:
        """Read usage and counts."""
        self.usages.append(read_usage(self.pid))
        if self.sink is not None:
            self.counts.append(self.sink.counts())


def measure(plan: Plan, folder: Path) -> Outcome:
    """Run all repetitions."""
    repetitions = [
        _repetition(folder / str(number), plan) for number in range(1, plan.repetitions + 1)
    ]
    results = compared(repetitions, COLLECTD)
    promises = [
        Promise(
            "CPU time of the agent as a multiple of collectd's",
            results["ratios_to_collectd"][AGENT][CPU],
            MOST_CPU_OF_COLLECTD,
            "times",
        ),
        Promise(
            "resident memory of the agent", results["medians"][AGENT][MEMORY], MOST_MEBIBYTES, "MiB"
        ),
    ]
    return Outcome(results, promises)


def _repetition(folder: Path, plan: Plan) -> dict[str, Figures]:
    folder.mkdir()
    gateway = make_deployment(folder / "server")
    with serving(gateway), _contenders(folder, gateway) as contenders:
        click.echo("warming up and measuring", err=True)
        time.sleep(plan.warm_up_seconds)
        start_ns = to_ns(utc_now())
        for contender in contenders.values():
            contender.read()
        time.sleep(plan.window_seconds)
        for contender in contenders.values():
            contender.read()
        end_ns = to_ns(utc_now())
        time.sleep(DELIVERY_SECONDS)  # what was read in the window is counted where it arrives
    ids = [contender.appliance_id for contender in contenders.values() if contender.appliance_id]
    stored = stored_samples(gateway, ids, start_ns=start_ns, end_ns=end_ns)
    figures = {name: _figures(contender, stored) for name, contender in contenders.items()}
    if not figures[COLLECTD]["samples_per_second"]:
        raise BenchmarkError("collectd sent nothing: install the packages libyajl2 and libsensors5")
    return figures


@contextmanager
def _contenders(folder: Path, gateway: Deployment) -> Iterator[dict[str, Contender]]:
    """Start everything under measure, and end it afterwards."""
    with ExitStack() as stack:
        contenders = {}
        for name, toml in TO_GATEWAY.items():
            home = folder / name
            appliance_id = enroll_agent(gateway, home)
            agent = stack.enter_context(agent_of(gateway, home=home, toml=toml))
            contenders[name] = Contender(agent.pid, appliance_id=appliance_id)
        sinks = {name: Sink() for name in (AGENT_TO_SINK, COLLECTD)}
        urls = {name: stack.enter_context(sink.serving()) for name, sink in sinks.items()}
        home = folder / AGENT_TO_SINK
        home.mkdir()
        # No server has made this identity: a sink asks for none.
        save_identity(home, Identity(appliance_id="bench", tenant_id="bench", agent_token="bench"))  # noqa: S106
        to_sink = Deployment(home, int(urls[AGENT_TO_SINK].rpartition(":")[2]))
        agent = stack.enter_context(agent_of(to_sink, home=home, toml=LIKE_COLLECTD))
        contenders[AGENT_TO_SINK] = Contender(agent.pid, sinks[AGENT_TO_SINK])
        commands = {
            COLLECTD: collectd_command(folder / COLLECTD, sink_url=f"{urls[COLLECTD]}/collectd"),
            PSUTIL_LOOP: python("benchmarks.shared.psutil_loop"),
        }
        for name, command in commands.items():
            process = stack.enter_context(running(command, log_path=folder / f"{name}.log"))
            contenders[name] = Contender(process.pid, sinks.get(name))
        yield contenders


def _figures(contender: Contender, stored: dict[str, int]) -> Figures:
    """Return a contender's figures; samples and bytes are None where nobody counts them."""
    first, last = contender.usages
    seconds = last.at_seconds - first.at_seconds
    figures: dict[str, float | None] = dict(spent(contender.usages))
    requests = sent_bytes = samples = None
    if contender.counts:
        requests, sent_bytes, samples = (
            rounded((after - before) / seconds)
            for before, after in zip(*contender.counts, strict=True)
        )
    elif contender.appliance_id:
        samples = rounded(stored[contender.appliance_id] / seconds)
    cpu_microseconds = (last.cpu_seconds - first.cpu_seconds) * 1e6 / seconds
    return figures | {
        "samples_per_second": samples,
        "requests_per_second": requests,
        "sent_body_bytes_per_second": sent_bytes,
        "cpu_microseconds_per_sample": rounded(cpu_microseconds / samples) if samples else None,
    }
