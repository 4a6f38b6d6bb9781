"""`vedette agent once`: read plugins now and show what they give."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click

from cli.agent_options import CONFIG_NAME, config_file_argument, data_dir_option
from collector.config import AgentConfig, load_agent_config
from collector.reading.once import OneReading, pause, read_once
from collector.reading.plugin_host import plugin_plans
from collector.reading.readers import PluginPlan
from core.clock import utc_now
from core.errors import InvalidInputError
from core.logs import configure_logging
from core.units import NO_UNIT, format_value, unit_of
from plugins.base import PluginContext, PluginUnavailableError
from plugins.registry import plugin_names
from timeseries.lineprotocol import encode
from timeseries.points import FieldValue, Point

HEADINGS = ("measurement", "tags", "field", "value")


@click.command()
@config_file_argument
@data_dir_option
@click.option("--plugin", "names", multiple=True, metavar="NAME", help="Read this one; repeatable.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Seconds between the two readings that rates need.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "lines", "json"]),
    default="table",
    show_default=True,
)
def once(
    config_file: Path | None, *, data_dir: Path, names: Sequence[str], wait: float, form: str
) -> None:
    """Read plugins now and print their samples; nothing is sent.

    Without --plugin all are read that the agent would read. CONFIG_FILE, or the agent.toml in the
    data folder, gives their settings; without either they have their defaults, and no enrolment is
    needed. The exit status is 1 when a plugin fails.
    """
    configure_logging("WARNING", process="once")
    config = _config(config_file, data_dir)
    plans = _chosen(config, names)
    context = PluginContext(docker_url=config.docker_url)
    readings = read_once(plans, context, clock=utc_now, wait=pause(wait))
    points = [point for reading in readings for point in reading.points]
    click.echo(_written(points, form), nl=False)
    if not all([_told(reading) for reading in readings]):  # noqa: C419 - each is to be told
        sys.exit(1)


def _config(config_file: Path | None, data_dir: Path) -> AgentConfig:
    path = config_file or data_dir / CONFIG_NAME
    if config_file is None and not path.exists():
        return AgentConfig(portal_urls=[])
    return load_agent_config(path)


def _chosen(config: AgentConfig, names: Sequence[str]) -> list[PluginPlan]:
    """Return the plans of the plugins that were named, also of those that are switched off."""
    unknown = [name for name in names if name not in plugin_names()]
    if unknown:
        raise InvalidInputError(
            f"--plugin: there is no plugin {', '.join(unknown)}; "
            f"there are {', '.join(plugin_names())}."
        )
    switched_on = {name: {**config.plugins.get(name, {}), "enabled": True} for name in names}
    effective = AgentConfig(
        portal_urls=[],
        interval_seconds=config.interval_seconds,
        docker_url=config.docker_url,
        plugins={**config.plugins, **switched_on},
    )
    plans = plugin_plans(effective, is_simulated=config.executor == "simulated")
    return [plan for plan in plans if not names or plan.name in names]


def _told(reading: OneReading) -> bool:
    """Say why a plugin gave nothing; return whether that is no failure."""
    if reading.fault is not None:
        is_absent = isinstance(reading.fault, PluginUnavailableError)
        verb = "has nothing to read here" if is_absent else "failed"
        click.echo(f"plugin {reading.plugin} {verb}: {reading.fault}", err=True)
        return is_absent
    if not reading.points:
        click.echo(f"plugin {reading.plugin} gave no samples", err=True)
    return True


def _written(points: Sequence[Point], form: str) -> str:
    if form == "lines":
        return encode(points).decode()
    if form == "json":
        return json.dumps([_as_object(point) for point in points], indent=2) + "\n"
    return "".join(f"{line}\n" for line in _table(points))


def _as_object(point: Point) -> dict[str, object]:
    return {
        "measurement": point.measurement,
        "tags": dict(point.tags),
        "fields": dict(point.fields),
        "time_ns": point.time_ns,
    }


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
