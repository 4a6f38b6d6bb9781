"""The agent beside collectd: what reading a host once a second and sending it costs.

    python -m benchmarks.agent_beside_collectd [--quick] [--output FILE]

    agent              the plugins of the host, every one reading all there is each second, as
                       collectd's do; sends to a real gateway
    agent_to_sink      the same, to a sink such as collectd has
    agent_defaults     the plugins of the host at their defaults; to the gateway
    agent_as_enrolled  all plugins at their defaults and an executor, as after enrollment
    collectd           the same vital signs, sent by write_http to a sink
    psutil_loop        the floor: reads with psutil, and does nothing with it

All contenders run at once, so that each meets the same caches, clocks and neighbors; a repetition
starts all of them anew. Their CPU time is compared within a repetition, then the median is taken.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from benchmarks import gateway as gateways
from benchmarks.collectd import READ_PLUGINS, collectd_command
from benchmarks.figures import Figures, Promise, document, median, medians, ratio, write_document
from benchmarks.meter import Usage, read_usage, spent
from benchmarks.processes import answers, free_port, get_json, python, running, wait_until
from benchmarks.sink import COLLECTD_PATH
from collector.data_dir import load_identity
from core.clock import to_ns, utc_now

INTERVAL_SECONDS = 1.0
AGENT = "agent"
AGENT_TO_SINK = "agent_to_sink"
AGENT_DEFAULTS = "agent_defaults"
AGENT_AS_ENROLLED = "agent_as_enrolled"
COLLECTD = "collectd"
PSUTIL_LOOP = "psutil_loop"
CONTENDERS = (AGENT, AGENT_TO_SINK, AGENT_DEFAULTS, AGENT_AS_ENROLLED, COLLECTD, PSUTIL_LOOP)
CPU = "cpu_milliseconds_per_second"
MEMORY = "resident_mebibytes"
MOST_CPU_OF_COLLECTD = 1.5
MOST_MEBIBYTES = 60.0
DELIVERY_SECONDS = 8.0
# collectd looks at every process each time; the agent does so every ten seconds by default.
LIKE_COLLECTD = f"{gateways.HOST_ONLY}\n[plugins.processes]\nstates_interval_seconds = 0\n"
TOML = {AGENT: LIKE_COLLECTD, AGENT_DEFAULTS: gateways.HOST_ONLY, AGENT_AS_ENROLLED: ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The length and the number of measurements."""

    warm_up_seconds: float
    window_seconds: float
    repetitions: int


FULL = Plan(warm_up_seconds=10.0, window_seconds=60.0, repetitions=3)
QUICK = Plan(warm_up_seconds=10.0, window_seconds=15.0, repetitions=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One process under measure.

    Attributes:
        counts_url: where its sink tells what came in; empty for none.
        appliance_id: under which the gateway stores its samples; empty for none.
    """

    pid: int
    counts_url: str = ""
    appliance_id: str = ""


def measure(plan: Plan) -> dict[str, object]:
    """Run all repetitions and return the document."""
    started_at = utc_now()
    repetitions = [_repetition(plan, number) for number in range(1, plan.repetitions + 1)]
    results = summary(repetitions)
    return document(
        "agent_beside_collectd",
        started_at=started_at,
        settings={
            "interval_seconds": INTERVAL_SECONDS,
            "warm_up_seconds": plan.warm_up_seconds,
            "window_seconds": plan.window_seconds,
            "repetitions": plan.repetitions,
            "agent_plugins": list(gateways.HOST_PLUGINS),
            "collectd_plugins": list(READ_PLUGINS),
        },
        results={**results, "repetitions": repetitions},
        promises=promises(results),
    )


def summary(repetitions: list[dict[str, Figures]]) -> dict[str, dict[str, object]]:
    """Return the medians of each contender, and each agent's figures as multiples of collectd's."""
    return {
        "medians": {
            name: medians([repetition[name] for repetition in repetitions]) for name in CONTENDERS
        },
        "ratios_to_collectd": {
            name: {
                figure: median(
                    ratio(repetition[name].get(figure), repetition[COLLECTD].get(figure))
                    for repetition in repetitions
                )
                for figure in (CPU, MEMORY, "cpu_microseconds_per_sample")
            }
            for name in CONTENDERS
            if name != COLLECTD
        },
    }


def promises(results: Mapping[str, Mapping[str, object]]) -> list[Promise]:
    """Return what the agent promises, with what was measured."""
    ratios, figures = results["ratios_to_collectd"][AGENT], results["medians"][AGENT]
    assert isinstance(ratios, dict) and isinstance(figures, dict)  # noqa: S101, PT018 - for the types
    return [
        Promise(
            name="CPU time of the agent as a multiple of collectd's",
            bound=MOST_CPU_OF_COLLECTD,
            measured=ratios[CPU],
            unit="times",
        ),
        Promise(
            name="resident memory of the agent",
            bound=MOST_MEBIBYTES,
            measured=figures[MEMORY],
            unit="MiB",
        ),
    ]


def _repetition(plan: Plan, number: int) -> dict[str, Figures]:
    with TemporaryDirectory(prefix="vedette-bench-") as folder:
        gateway = gateways.make_gateway(Path(folder) / "server")
        with gateways.serving(gateway), _contenders(Path(folder), gateway) as contenders:
            _say(f"repetition {number}: warming up for {plan.warm_up_seconds:.0f} s")
            time.sleep(plan.warm_up_seconds)
            start_ns, before = to_ns(utc_now()), _look(contenders)
            _say(f"repetition {number}: measuring for {plan.window_seconds:.0f} s")
            time.sleep(plan.window_seconds)
            after, end_ns = _look(contenders), to_ns(utc_now())
            time.sleep(DELIVERY_SECONDS)  # what was read in the window is counted where it arrives
        windows = {
            contender.appliance_id: (start_ns, end_ns)
            for contender in contenders.values()
            if contender.appliance_id
        }
        stored = gateways.stored_samples(gateway, windows)
        return {
            name: _figures(before[name], after[name], stored.get(contender.appliance_id))
            for name, contender in contenders.items()
        }


@contextmanager
def _contenders(folder: Path, gateway: gateways.Gateway) -> Iterator[dict[str, Contender]]:
    """Start everything under measure, in an order that favors none, and end it afterwards."""
    with ExitStack() as stack:
        started: dict[str, Contender] = {}
        for name in (AGENT, AGENT_AS_ENROLLED, AGENT_DEFAULTS):
            started[name] = _gateway_agent(stack, folder / name, gateway, name)
        home = folder / AGENT_TO_SINK
        gateways.pretend_enrolled(home)
        sink_url = _sink(stack, folder, AGENT_TO_SINK)
        started[AGENT_TO_SINK] = Contender(
            pid=_agent(stack, home, sink_url, toml=LIKE_COLLECTD), counts_url=f"{sink_url}/counts"
        )
        sink_url = _sink(stack, folder, COLLECTD)
        command = collectd_command(
            folder / COLLECTD,
            sink_url=f"{sink_url}{COLLECTD_PATH}",
            interval_seconds=INTERVAL_SECONDS,
        )
        started[COLLECTD] = Contender(
            pid=stack.enter_context(running(command, log_path=folder / "collectd.log")),
            counts_url=f"{sink_url}/counts",
        )
        loop = running(python("benchmarks.psutil_loop"), log_path=folder / "psutil.log")
        started[PSUTIL_LOOP] = Contender(pid=stack.enter_context(loop))
        yield {name: started[name] for name in CONTENDERS}


def _gateway_agent(stack: ExitStack, home: Path, gateway: gateways.Gateway, name: str) -> Contender:
    home.mkdir()
    gateways.enroll(gateway, home, name=name)
    identity = load_identity(home)
    assert identity is not None  # noqa: S101 - enrolled just now
    pid = _agent(stack, home, gateway.url, toml=TOML[name])
    return Contender(pid=pid, appliance_id=identity.appliance_id)


def _agent(stack: ExitStack, home: Path, url: str, *, toml: str) -> int:
    gateways.configure(home, url, toml=f"interval_seconds = {INTERVAL_SECONDS:g}\n{toml}")
    return stack.enter_context(
        running(gateways.agent_command(home), log_path=home.with_suffix(".log"))
    )


def _sink(stack: ExitStack, folder: Path, name: str) -> str:
    port, log_path = free_port(), folder / f"{name}-sink.log"
    stack.enter_context(running(python("benchmarks.sink", str(port)), log_path=log_path))
    url = f"http://127.0.0.1:{port}"
    wait_until(lambda: answers(f"{url}/counts"), what="the sink to answer", log_path=log_path)
    return url


@dataclass(frozen=True, slots=True)
class _Look:
    usage: Usage
    counts: Mapping[str, int] | None


def _look(contenders: Mapping[str, Contender]) -> dict[str, _Look]:
    return {
        name: _Look(
            read_usage(contender.pid),
            get_json(contender.counts_url) if contender.counts_url else None,
        )
        for name, contender in contenders.items()
    }


def _figures(before: _Look, after: _Look, stored_samples: int | None) -> Figures:
    """Return one contender's figures; samples and bytes are None where nobody counts them."""
    seconds = after.usage.at_seconds - before.usage.at_seconds
    figures: dict[str, float | None] = dict(spent(before.usage, after.usage))
    samples = None if stored_samples is None else stored_samples / seconds
    requests = sent_bytes = None
    if before.counts is not None and after.counts is not None:
        grown = {name: after.counts[name] - before.counts[name] for name in after.counts}
        samples, requests = grown["samples"] / seconds, grown["requests"] / seconds
        sent_bytes = grown["body_bytes"] / seconds
    milliseconds = figures[CPU]
    return figures | {
        "samples_per_second": samples,
        "requests_per_second": requests,
        "sent_body_bytes_per_second": sent_bytes,
        "cpu_microseconds_per_sample": (
            1000 * milliseconds / samples if samples and milliseconds is not None else None
        ),
    }


def _say(progress: str) -> None:
    click.echo(progress, err=True)


@click.command()
@click.option("--quick", is_flag=True, help="15 s once, in place of 60 s three times.")
@click.option("--output", type=click.Path(path_type=Path), help="Also keep the JSON here.")
def main(*, quick: bool, output: Path | None) -> None:
    """Measure the agent beside collectd and print JSON."""
    write_document(measure(QUICK if quick else FULL), output)


if __name__ == "__main__":
    main()
