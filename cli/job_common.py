"""What the commands for jobs share: notations of options, secrets, explanations of placement."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from cli.local_time import local_minutes
from core.errors import InvalidInputError
from core.quantities import parse_duration, parse_size


class Notation(click.ParamType[Any]):
    """An option in a notation of its own, such as `8GiB`.

    Args:
        name: of the notation, in help texts.
        parse: returns the value, or raises ValueError with what is expected.
    """

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - depends on the notation
        """Parse the option, or fail with its name."""
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = Notation("duration", lambda text: int(parse_duration(text)))
SIZE = Notation("size", parse_size)


def print_pending(found: Mapping[str, Any]) -> None:
    """Print why a job waits, or where it would go."""
    click.echo(found["reason"] or "The job is not waiting.")
    if found["position"] is not None and found["is_pending"]:
        click.echo(f"Position:       {found['position']} of {found['queue_length']}")
        if found["needs"]:
            click.echo(f"Needs:          {found['needs']}")
        start_at = found["expected_start_at"]
        start = local_minutes(start_at) if start_at else "unknown without time limits"
        click.echo(f"Expected start: {start}")
    if found.get("assumption"):
        click.echo(found["assumption"])
    for one in found["rejections"]:
        for example in one["examples"]:
            click.echo(f"  {example['appliance']}: {example['fact']}")
        more = one["count"] - len(one["examples"])
        if more:
            click.echo(f"  {more} more: {one['code'].replace('_', ' ')}")


def secret(text: str, values: Mapping[str, str]) -> tuple[str, str]:
    """Return name and value of a secret; without a value, the one in `values`."""
    name, equals, value = text.partition("=")
    if equals:
        return name, value
    if name not in values:
        raise InvalidInputError(f"--secret {name}: there is no variable {name} to take it from.")
    return name, values[name]
