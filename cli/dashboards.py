"""`vedette dashboards`: custom dashboards, also in a file to apply and export, and saved views.

dashboards:
  - name: Training
    is_shared: true
    panels:
      - title: GPU power
        chart: band
        measurement: gpu
        fields: [power_watts]
        group_by: [appliance]
"""

from typing import Any, TextIO

import click
import yaml

from cli.client import (
    Columns,
    all_items,
    fetch_items,
    load_list,
    one_named,
    output_option,
    print_object,
    print_rows,
    save_named,
)
from core.errors import InvalidInputError
from vedette.client import Client

_COLORS = {"create": "green", "update": "yellow", "keep": None}
# The keys of a dashboard and of a panel in a file; values that are defaults are left out.
_KEYS = ("name", "description", "is_shared", "panels")
_PANEL_KEYS = (
    *("title", "chart", "measurement", "fields", "aggregate"),
    *("group_by", "filters", "is_wide"),
)


@click.group()
def dashboards() -> None:
    """List custom dashboards and saved views, and keep dashboards in a file."""


@dashboards.command("ls")
@output_option
def list_dashboards(output: str) -> None:
    """List your dashboards, and those that your tenant shares."""
    columns: Columns = {
        "NAME": "name",
        "PANELS": lambda row: str(len(row["panels"])),
        "SHARED": lambda row: "yes" if row["is_shared"] else "no",
        "AUTHOR": lambda row: row["user_email"] or "-",
    }
    empty = "No dashboards yet. Create some: vedette dashboards apply -f FILE"
    print_rows(fetch_items("/dashboards"), output, columns, empty=empty)


@dashboards.command()
@click.option("-f", "--file", type=click.File(), required=True, help="YAML file; - reads stdin.")
@click.option("--dry-run", is_flag=True, help="Only print what would change.")
def apply(file: TextIO, *, dry_run: bool) -> None:
    """Create and update the dashboards of a file, by name. On any error nothing changes."""
    body = {"dashboards": load_list(file, "dashboards"), "is_dry_run": dry_run}
    with Client() as client:
        changes = client.post("/dashboards/apply", body)["items"]
    for change in changes:
        click.secho(f"{change['action']:<7} {change['name']}", fg=_COLORS[change["action"]])


@dashboards.command()
@click.argument("names", nargs=-1)
@click.option("-f", "--file", type=click.File("w"), default="-", help="Defaults to stdout.")
def export(names: tuple[str, ...], file: TextIO) -> None:
    """Write the dashboards with these NAMES, or all that you may change, as a file for `apply`."""
    with Client() as client:
        dashboards = list(all_items(client, "/dashboards"))
    missing = sorted(set(names) - {dashboard["name"] for dashboard in dashboards})
    if missing:
        raise InvalidInputError(f"There is no dashboard {missing[0]!r}. See: vedette dashboards ls")
    chosen = [
        dashboard
        for dashboard in dashboards
        if (dashboard["name"] in names if names else dashboard["is_changeable"])
    ]
    document = {"dashboards": [_entry(dashboard, _KEYS) for dashboard in chosen]}
    file.write(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100))


@dashboards.command("rm")
@click.argument("name")
def remove(name: str) -> None:
    """Delete a dashboard by its name or ID."""
    with Client() as client:
        items = all_items(client, "/dashboards")
        dashboard = one_named(items, name, noun="dashboard", command="vedette dashboards ls")
        client.delete(f"/dashboards/{dashboard['id']}")
    click.echo(f"{name} deleted")


@dashboards.command()
def schema() -> None:
    """Print the JSON Schema of a file of dashboards, for editors."""
    with Client() as client:
        print_object(client.get("/dashboard.schema.json"), "json")


@dashboards.group()
def view() -> None:
    """List, save and delete saved views: addresses of dashboards and reports under names."""


@view.command("ls")
@output_option
def list_views(output: str) -> None:
    """List your views, and those that your tenant shares."""
    with Client() as client:
        views = client.get("/saved-views")["items"]
    columns: Columns = {
        "NAME": "name",
        "ADDRESS": "address",
        "SHARED": lambda row: "yes" if row["is_shared"] else "no",
        "START PAGE": lambda row: "yes" if row["is_own"] and row["is_default"] else "no",
        "AUTHOR": lambda row: row["user_email"] or "-",
    }
    empty = "No views yet. Save one: vedette dashboards view save NAME ADDRESS"
    print_rows(views, output, columns, empty=empty)


@view.command("save")
@click.argument("name")
@click.argument("address")
@click.option("--shared", is_flag=True, help="All users of the tenant see it.")
@click.option("--start-page", is_flag=True, help="Open it after you sign in.")
def save_view(name: str, address: str, *, shared: bool, start_page: bool) -> None:
    """Save an ADDRESS such as '/dashboards/?range=6h', or replace your view with this NAME."""
    body = {"name": name, "address": address, "is_shared": shared, "is_default": start_page}
    with Client() as client:
        views = client.get("/saved-views")["items"]
        save_named(client, "/saved-views", body, (view for view in views if view["is_own"]))
    click.echo(f"{name} saved")


@view.command("rm")
@click.argument("name")
def remove_view(name: str) -> None:
    """Delete a view by its name or ID."""
    with Client() as client:
        views = client.get("/saved-views")["items"]
        view = one_named(views, name, noun="view", command="vedette dashboards view ls")
        client.delete(f"/saved-views/{view['id']}")
    click.echo(f"{name} deleted")


def _entry(item: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    entry = {key: item[key] for key in keys if item[key]}
    if "panels" in item:
        entry["panels"] = [_entry(panel, _PANEL_KEYS) for panel in item["panels"]]
    return entry
