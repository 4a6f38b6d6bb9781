"""Helpers of the commands for jobs: options, secrets, explanations of placement."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from cli.local_time import local_minutes
from core.errors import InvalidInputError
from core.quantities import format_duration, parse_duration, parse_size


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


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"{text!r} is not KEY=VALUE.")
    return key, value


DURATION = Notation("duration", lambda text: int(parse_duration(text)))
SIZE = Notation("size", parse_size)
PAIR = Notation("pair", _pair)


def print_pending(explanation: Mapping[str, Any]) -> None:
    """Print why a job waits, or where it would go."""
    click.echo(explanation["reason"] or "The job is not waiting.")
    if explanation.get("data"):
        click.echo(f"Data:           {explanation['data']}")
    if explanation["position"] is not None and explanation["is_pending"]:
        click.echo(f"Position:       {explanation['position']} of {explanation['queue_length']}")
        _print_points(explanation)
        if explanation["needs"]:
            click.echo(f"Needs:          {explanation['needs']}")
        start_at = explanation["expected_start_at"]
        start = local_minutes(start_at) if start_at else "unknown without time limits"
        click.echo(f"Expected start: {start}")
        errors = explanation["past_errors"]
        if errors:
            click.echo(
                f"  Of {errors['count']} forecasts in 30 days, half were within "
                f"{format_duration(errors['median_seconds'])} and 90 % within "
                f"{format_duration(errors['p90_seconds'])}."
            )
    if explanation.get("assumption"):
        click.echo(explanation["assumption"])
    for rejection in explanation["rejections"]:
        for example in rejection["examples"]:
            click.echo(f"  {example['appliance']}: {example['fact']}")
        hidden_count = rejection["count"] - len(rejection["examples"])
        if hidden_count:
            click.echo(f"  {hidden_count} more: {rejection['code'].replace('_', ' ')}")


def _print_points(explanation: Mapping[str, Any]) -> None:
    """Print the parts of a job's points, where the queue is ordered by points."""
    if not explanation["parts"]:
        return
    click.echo(f"Points:         {explanation['points']:.1f}")
    for part in explanation["parts"]:
        name = part["name"].replace("_", " ")
        value = f"{part['value']:.3f} x {part['weight']}"
        click.echo(f"  {name:<12}{part['points']:>10.1f}  = {value}")
    if explanation["rank"] is not None:
        users = explanation["user_count"]
        click.echo(f"  Rank of the user in the fair share tree: {explanation['rank']} of {users}")


def secret(text: str, values: Mapping[str, str]) -> tuple[str, str]:
    """Return name and value of a secret; without a value, the one in `values`."""
    name, equals, value = text.partition("=")
    if equals:
        return name, value
    if name not in values:
        raise InvalidInputError(f"--secret {name}: there is no variable {name} to take it from.")
    return name, values[name]
