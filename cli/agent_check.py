"""`vedette agent check` and `vedette agent once`: test an appliance's configuration and plugins."""

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import click

from cli.agent_enroll import CONFIG_NAME, data_dir_option
from collector.checks.appliance import check_appliance
from collector.checks.connections import CheckResult, Verdict
from collector.config import AgentConfig, load_agent_config
from collector.reading.once import read_once
from collector.reading.plugin_host import plugin_plans
from collector.reading.plugin_reader import PluginPlan, ReadResult
from core.clock import utc_now
from core.errors import ConfigurationError, InvalidInputError
from core.logs import configure_logging
from core.quantities import NO_UNIT, format_value, unit_of
from plugins.base import PluginContext, PluginUnavailableError
from plugins.registry import plugin_names
from timeseries.lineprotocol.encode import encode
from timeseries.points import FieldValue, Point

COLORS = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAIL: "red"}
HEADINGS = ("measurement", "tags", "field", "value")

config_file_argument = click.argument(
    "config_file", type=click.Path(path_type=Path, dir_okay=False), required=False
)


@click.command()
@config_file_argument
@data_dir_option
@click.option("--offline", is_flag=True, help="Validate the file only.")
def check(config_file: Path | None, *, data_dir: Path, offline: bool) -> None:
    """Check the configuration, this user's file permissions and the connection to the portal.

    CONFIG_FILE defaults to agent.toml in the data directory. The exit status is 1 if a check
    FAILs; warnings don't change it.
    """
    path = config_file or data_dir / CONFIG_NAME
    load = partial(load_agent_config, path, data_dir=None if config_file else data_dir)
    if offline:
        load()
        click.echo(f"{path} is valid.")
        return
    try:
        config = load()
    except ConfigurationError as error:
        for problem in error.problems:
            _show(CheckResult(Verdict.FAIL, "configuration", problem, f"Correct {path}."))
        sys.exit(1)
    _show(CheckResult(Verdict.OK, "configuration", f"{path} is valid"))
    has_failed = False
    for result in check_appliance(config, clock=utc_now):
        _show(result)
        has_failed |= result.verdict is Verdict.FAIL
    sys.exit(has_failed)


@click.command()
@config_file_argument
@data_dir_option
@click.option(
    "--plugin", "names", multiple=True, metavar="NAME", help="Plugin to read; repeatable."
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    help="Seconds between the readings that rates need. Defaults to 1, or to the interval of "
    "collectd modules and programs, which count by themselves.",
)
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["table", "lines", "json"]),
    default="table",
    show_default=True,
    help="Output format; `lines` is line protocol.",
)
def once(
    config_file: Path | None,
    *,
    data_dir: Path,
    names: Sequence[str],
    wait: float | None,
    output_format: str,
) -> None:
    """Read plugins once and print their samples. Nothing is sent.

    Reads the plugins that the agent would read, or those named by --plugin. Settings come from
    CONFIG_FILE (default: agent.toml in the data directory). Without a file, plugins use their
    defaults; no enrollment is needed. The exit status is 1 if a plugin fails.
    """
    configure_logging("WARNING", process="once")
    config = _config(config_file, data_dir)
    plans = _selected(config, names)
    context = PluginContext(docker_url=config.docker_url)
    readings = read_once(
        plans,
        context,
        clock=utc_now,
        wait=lambda seconds: time.sleep(seconds if wait is None else wait),
    )
    points = [point for reading in readings for point in reading.points]
    click.echo(_formatted(points, output_format), nl=False)
    reports = [_report(plan.name, reading) for plan, reading in zip(plans, readings, strict=True)]
    if not all(reports):
        sys.exit(1)


def _show(result: CheckResult) -> None:
    verdict = click.style(f"{result.verdict:<7}", fg=COLORS[result.verdict])
    advice = f". {result.advice}" if result.advice else ""
    click.echo(f"{verdict}  {result.name}: {result.message.rstrip('.')}{advice}")


def _config(config_file: Path | None, data_dir: Path) -> AgentConfig:
    path = config_file or data_dir / CONFIG_NAME
    if config_file is None and not path.exists():
        return AgentConfig(portal_urls=[])
    return load_agent_config(path, data_dir=None if config_file else data_dir)


def _selected(config: AgentConfig, names: Sequence[str]) -> list[PluginPlan]:
    """Return the plans of the named plugins, even if they are disabled in the configuration."""
    unknown = [name for name in names if name not in plugin_names()]
    if unknown:
        raise InvalidInputError(
            f"Unknown plugin {', '.join(unknown)} in --plugin. "
            f"Available: {', '.join(plugin_names())}."
        )
    enabled = {name: {**config.plugins.get(name, {}), "enabled": True} for name in names}
    effective = AgentConfig(
        portal_urls=[],
        interval_seconds=config.interval_seconds,
        docker_url=config.docker_url,
        plugins={**config.plugins, **enabled},
    )
    plans = plugin_plans(effective, is_simulated=config.executor == "simulated")
    return [plan for plan in plans if not names or plan.name in names]


def _report(plugin: str, reading: ReadResult) -> bool:
    """Print why a plugin returned nothing; return False if it failed."""
    if reading.error is not None:
        is_unavailable = isinstance(reading.error, PluginUnavailableError)
        status = "is not available on this host" if is_unavailable else "failed"
        click.echo(f"plugin {plugin} {status}: {reading.error}", err=True)
        return is_unavailable
    if not reading.points:
        click.echo(f"plugin {plugin} returned no samples", err=True)
    return True


def _formatted(points: Sequence[Point], output_format: str) -> str:
    if output_format == "lines":
        return encode(points).decode()
    if output_format == "json":
        objects = [
            {
                "measurement": point.measurement,
                "tags": dict(point.tags),
                "fields": dict(point.fields),
                "time_ns": point.time_ns,
            }
            for point in points
        ]
        return json.dumps(objects, indent=2) + "\n"
    return "".join(f"{line}\n" for line in _table(points))


def _table(points: Iterable[Point]) -> Iterator[str]:
    rows = [
        (
            point.measurement,
            " ".join(f"{name}={value}" for name, value in point.tags.items()),
            field,
            _with_unit(field, value),
        )
        for point in points
        for field, value in point.fields.items()
    ]
    if not rows:
        return
    widths = [max(len(row[column]) for row in [HEADINGS, *rows]) for column in range(3)]
    for row in [HEADINGS, *rows]:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=False)]
        yield "  ".join([*cells, row[3]]).rstrip()


def _with_unit(field: str, value: FieldValue) -> str:
    if isinstance(value, (bool, str)):
        return str(value)
    if unit_of(field) is not NO_UNIT:
        return format_value(field, value)
    return str(value) if isinstance(value, int) else f"{value:g}"
