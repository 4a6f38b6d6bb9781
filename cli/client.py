"""Helpers of the commands that call the portal: lists, files, and output formats."""

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

import click
import yaml

from core.errors import InvalidInputError
from vedette.client import Client

PAGE_SIZE = 100
# The columns of a table: title to a field of the rows, or to what makes the cell of a row.
Columns = Mapping[str, str | Callable[[Mapping[str, Any]], str]]
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


def all_items(client: Client, path: str, **query: object) -> Iterator[dict[str, Any]]:
    """Yield the items of all pages of a list; None in the query is left out."""
    number = 0
    while True:
        number += 1
        page = client.get(path, page=number, page_size=PAGE_SIZE, **query)
        yield from page["items"]
        if number * PAGE_SIZE >= page["total"]:
            return


def fetch_items(path: str, **query: object) -> list[dict[str, Any]]:
    """Return the items of a list with a client of its own."""
    with Client() as client:
        return list(all_items(client, path, **query))


def one_named(
    items: Iterable[dict[str, Any]], name_or_id: str, *, noun: str, command: str
) -> dict[str, Any]:
    """Return the item with a name or an ID.

    Args:
        items: of a list.
        name_or_id: of the item.
        noun: what the items are, such as `dashboard`.
        command: lists them.

    Raises:
        InvalidInputError: there is none, or several.
    """
    matches = [item for item in items if name_or_id in {item["name"], item["id"]}]
    if len(matches) != 1:
        subject = f"{len(matches)} {noun}s have" if matches else f"No {noun} has"
        raise InvalidInputError(f"{subject} the name or ID {name_or_id!r}. See: {command}")
    return matches[0]


def save_named(
    client: Client, path: str, body: dict[str, Any], own: Iterable[dict[str, Any]]
) -> dict[str, Any]:
    """Replace the one of the user's `own` items that has the name of the body, or add one."""
    item_id = next((item["id"] for item in own if item["name"] == body["name"]), None)
    saved: dict[str, Any] = (
        client.put(f"{path}/{item_id}", body) if item_id else client.post(path, body)
    )
    return saved


def load_mapping(file: TextIO) -> Mapping[str, Any]:
    """Return the mapping of a YAML file of one document; any other document is an empty one.

    Raises:
        InvalidInputError: it is not YAML.
    """
    documents = load_documents(file)
    return documents[0] if len(documents) == 1 else {}


def load_documents(file: TextIO) -> list[Mapping[str, Any]]:
    """Return the mappings of a YAML file; any other document is an empty one.

    Raises:
        InvalidInputError: it is not YAML.
    """
    name = getattr(file, "name", "<stdin>")
    try:
        documents = list(yaml.safe_load_all(file))
    except yaml.YAMLError as error:
        raise InvalidInputError(f"{name} is not valid YAML: {error}") from None
    return [document if isinstance(document, Mapping) else {} for document in documents]


def load_list(file: TextIO, key: str) -> list[Any]:
    """Return the list of a YAML file that has nothing but this key.

    Raises:
        InvalidInputError: the file is another one.
    """
    name = getattr(file, "name", "<stdin>")
    document = load_mapping(file)
    entries = document.get(key)
    if not isinstance(entries, list):
        raise InvalidInputError(f"{name} has no list {key!r}. Expected: {key}: [...]")
    unknown = sorted(str(other) for other in document if other != key)
    if unknown:
        raise InvalidInputError(f"{name}: unknown key {unknown[0]!r}. Expected only {key!r}.")
    return entries


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    output: str,
    columns: Columns,
    *,
    empty: str = "",
    name: str = "name",
) -> None:
    """Print rows of a list in a format.

    Args:
        rows: of the list.
        output: the format.
        columns: of the table.
        empty: what is said instead of a table without rows; "" for its titles alone.
        name: the field that the format `name` prints.
    """
    if output == "name":
        for row in rows:
            click.echo(row[name])
    elif output != "table":
        print_object(rows, output)
    elif empty and not rows:
        click.echo(empty, err=True)
    else:
        cells = ([_cell(column, row) for column in columns.values()] for row in rows)
        print_table([list(columns), *cells])


def _cell(column: str | Callable[[Mapping[str, Any]], str], row: Mapping[str, Any]) -> str:
    return str(row[column]) if isinstance(column, str) else column(row)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print aligned rows, the titles first."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def print_object(item: object, output: str) -> None:
    """Print an object as JSON or YAML."""
    text = (
        yaml.safe_dump(item, sort_keys=False, allow_unicode=True)
        if output == "yaml"
        else json.dumps(item, indent=2, ensure_ascii=False) + "\n"
    )
    click.echo(text, nl=False)
