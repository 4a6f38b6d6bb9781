"""What the commands for jobs share: secrets of options, and explanations of placement."""

from collections.abc import Mapping
from typing import Any

import click

from core.errors import InvalidInputError


def print_pending(found: Mapping[str, Any]) -> None:
    """Print why a job waits, or where it would go."""
    click.echo(found["reason"] or "The job does not wait.")
    if found["position"] is not None and found["is_pending"]:
        click.echo(f"Position:       {found['position']} of {found['queue_length']}")
        if found["needs"]:
            click.echo(f"Must free up:   {found['needs']}")
        start = found["expected_start_at"] or "unknown without time limits"
        click.echo(f"Expected start: {start}")
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
