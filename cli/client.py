"""What commands share that call the portal: names of appliances, and output formats."""

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import click
import yaml

from core.errors import InvalidInputError
from vedette.client import Client

FORMATS = ("table", "json", "yaml", "name")
output_option = click.option(
    "-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True
)


def appliance_id(client: Client, name_or_id: str) -> str:
    """Return the ID of an appliance.

    Raises:
        InvalidInputError: the tenant has no appliance with this name.
    """
    try:
        return str(uuid.UUID(name_or_id))
    except ValueError:
        pass
    # Without a state the API lists the appliances in service.
    for state in (None, "retired"):
        query = {"search": name_or_id, "sort": "name", "page_size": 500}
        for item in client.get("/appliances", status=state, **query)["items"]:
            if item["name"] == name_or_id:
                return str(item["id"])
    raise InvalidInputError(f"No appliance named {name_or_id!r}. See: vedette appliance list")


def print_items(
    items: Sequence[Mapping[str, Any]], output: str, *, columns: Mapping[str, Sequence[str]]
) -> None:
    """Print items in a format; `columns` are those of the table: title to one cell per item."""
    if output == "name":
        for item in items:
            click.echo(item["name"])
    elif output == "table":
        cells = [[title, *texts] for title, texts in columns.items()]
        widths = [max(map(len, column)) for column in cells]
        for row in zip(*cells, strict=True):
            padded = (text.ljust(width) for text, width in zip(row, widths, strict=True))
            click.echo("  ".join(padded).rstrip())
    else:
        print_object(items, output)


def print_object(found: object, output: str) -> None:
    """Print an object as JSON or YAML."""
    text = (
        yaml.safe_dump(found, sort_keys=False, allow_unicode=True)
        if output == "yaml"
        else json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    )
    click.echo(text, nl=False)
