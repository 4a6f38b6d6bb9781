"""`vedette appliance`: list appliances, create enrollment tokens, drain, clean up and retire."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from cli.agent_rollouts import rollout
from cli.client import Columns, all_items, appliance_id, output_option, print_object, print_rows
from cli.local_time import local_seconds
from core.quantities import format_size, parse_duration
from vedette.client import Client

_FOLLOW_SECONDS = 2.0
MAX_NODES_LISTED = 500
_VERDICTS = {"age": "delete", "disk_use": "delete"}


@click.group()
def appliance() -> None:
    """List, enroll, update, drain and retire appliances."""


appliance.add_command(rollout)


@appliance.command("list")
@click.option("--state", help="Only this state, such as online, lost, quarantined or retired.")
@click.option("--label", help="Only this label: rack or rack=b12.")
@click.option("--search", help="Only with this text in the name, site, region or GPU model.")
@click.option("--nodes", is_flag=True, help="With the nodes of clusters, too.")
def list_appliances(
    state: str | None, label: str | None, search: str | None, *, nodes: bool
) -> None:
    """List the appliances of your tenant. Retired ones are listed by --state retired."""
    filters = {"status": state, "label": label, "search": search}
    with Client() as client:
        page = client.get(
            "/appliances", **filters, nodes="all" if nodes else "without", page_size=500
        )
    if not page["items"] and not any(filters.values()):
        click.echo("No appliances yet. Create an enrollment token with: vedette appliance token")
    for item in page["items"]:
        gpus = item["gpu_count"]
        via = f"  via {item['access_point']}" if item["access_point"] else ""
        kind = f"  {item['cluster_kind']} cluster" if item["cluster_kind"] else ""
        node = item["connector"]
        of = f"  node of {node['name']}" if node else ""
        line = f"{item['id']}  {item['status']:<11}  {gpus:>2} GPUs  {item['name']}{kind}{of}{via}"
        click.echo(line)
    if page["total"] > len(page["items"]):
        click.echo(
            f"... and {page['total'] - len(page['items'])} more. Use --search to narrow down."
        )


@appliance.command()
@click.argument("name")
def events(name: str) -> None:
    """Show the events of appliance NAME (or ID), newest first."""
    with Client() as client:
        page = client.get(f"/appliances/{appliance_id(client, name)}/events")
    for item in page["items"]:
        click.echo(f"{local_seconds(item['at'])}  {item['kind']:<12}  {item['message']}")


@appliance.command()
@click.argument("name")
@output_option
def nodes(name: str, output: str) -> None:
    """List the nodes of the cluster of the connector NAME with what jobs have allocated."""
    with Client() as client:
        ident = appliance_id(client, name)
        cluster = client.get(f"/appliances/{ident}")["cluster"]
        page = client.get(f"/appliances/{ident}/nodes", page_size=MAX_NODES_LISTED)
        items = page["items"]
    if cluster is None and output == "table":
        raise click.ClickException(f"{name} is no connector of a cluster, so it has no nodes.")
    columns: Columns = {
        "NODE": lambda row: row["node"]["name"],
        "STATE": lambda row: row["node"]["state"],
        "CPUS": lambda row: f"{row['node']['allocated_cpus']:g}/{row['node']['cpus']:g}",
        "MEMORY": _node_memory,
        "GPUS": lambda row: f"{row['node']['allocated_gpus']}/{row['node']['gpus']}",
        "REASON": lambda row: row["node"]["reason"],
    }
    print_rows(items, output, columns)
    if output == "table" and page["total"] > len(items):
        click.echo(f"... and {page['total'] - len(items)} more")
    if output == "table" and cluster["problem"]:
        click.echo(f"The cluster takes no jobs: {cluster['problem']}")


def _node_memory(row: Mapping[str, Any]) -> str:
    node = row["node"]
    allocated, total = node["allocated_memory_bytes"], node["memory_bytes"]
    return f"{format_size(allocated)} of {format_size(total)}"


@appliance.command("rented-jobs")
@click.argument("name")
@output_option
def rented_jobs(name: str, output: str) -> None:
    """List the jobs of tenants that rent appliance NAME (or ID) and run there now."""
    with Client() as client:
        items = list(all_items(client, f"/appliances/{appliance_id(client, name)}/rented-jobs"))
    columns: Columns = {
        "CONTRACT": "contract_id",
        "STATE": "state",
        "GPUS": lambda item: str(len(item["gpu_uuids"])),
        "SINCE": lambda item: local_seconds(item["since"]),
    }
    print_rows(items, output, columns, name="id")


@appliance.command()
@click.option("--site", default="", help="Site of the appliance.")
@click.option("--region", default="", help="Region of the appliance.")
@click.option(
    "--uses", default=1, show_default=True, help="How many appliances can enroll with it."
)
def token(site: str, region: str, uses: int) -> None:
    """Create an enrollment token and print the line to run on the appliance."""
    with Client() as client:
        made = client.post("/enrollment-tokens", {"site": site, "region": region, "uses": uses})
    click.echo(made["install_command"])


@appliance.command()
@click.argument("name")
@click.option(
    "--wait",
    help="Stop jobs that still run after this time, such as 30m, and queue them again; 0 stops "
    "them now. By default they run to their end.",
)
@click.option("--follow", "-f", is_flag=True, help="Show the progress until no job runs.")
def drain(name: str, wait: str | None, *, follow: bool) -> None:
    """Stop placing jobs on NAME. Running jobs continue, or move after a time."""
    try:
        seconds = None if wait is None else parse_duration(wait)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--wait") from error
    with Client() as client:
        path = f"/appliances/{appliance_id(client, name)}/drain"
        done = client.post(path, {"wait_seconds": seconds})
        click.echo(f"{done['name']} is drained.")
        jobs_left = None
        while follow:
            progress = client.get(path)
            if progress["jobs_left"] != jobs_left:
                jobs_left = progress["jobs_left"]
                named = ", ".join(job["name"] for job in progress["jobs"][:3])
                others = f" and {jobs_left - 3} more" if jobs_left > 3 else ""  # noqa: PLR2004
                status = f"still running: {named}{others}" if jobs_left else "no job runs"
                job_count = progress["job_count"]
                click.echo(f"{job_count - jobs_left} of {job_count} ended; {status}")
            if not progress["is_drained"]:
                raise click.ClickException(f"{name} was undrained meanwhile.")
            if progress["is_done"]:
                break
            time.sleep(_FOLLOW_SECONDS)


def _action(verb: str, help_text: str, result: str) -> Callable[[str], None]:
    """Add a command that calls one action of an appliance."""

    @appliance.command(verb, help=help_text)
    @click.argument("name")
    def act(name: str) -> None:
        with Client() as client:
            done = client.post(f"/appliances/{appliance_id(client, name)}/{verb}")
        click.echo(f"{done['name']} {result}")

    return act


@appliance.command()
@click.argument("name")
@click.option("--clean", is_flag=True, help="Delete what the cleanup policy says, and wait.")
@output_option
def storage(name: str, output: str, *, clean: bool) -> None:
    """List the images of NAME and why each is deleted or stays."""
    with Client() as client:
        path = f"/appliances/{appliance_id(client, name)}/storage"
        report = client.post(f"{path}/clean") if clean else client.get(path)
        while report["requested_at"] and clean:
            time.sleep(_FOLLOW_SECONDS)
            report = client.get(path)
    if output != "table":
        print_object(report, output)
        return
    if report["reported_at"] is None:
        click.echo(f"{name} reports no container storage.")
        return
    columns: Columns = {
        "IMAGE": lambda image: (image["names"] or [image["id"]])[0],
        "SIZE": lambda image: format_size(image["size_bytes"]),
        "LAST USED": lambda image: local_seconds(image["used_at"]),
        "NEXT CLEANUP": lambda image: _VERDICTS.get(image["verdict"], "keep"),
        "REASON": lambda image: image["verdict"].replace("_", " "),
    }
    print_rows(report["images"], output, columns)
    if total := report["disk_total_bytes"]:
        click.echo(f"{format_size(report['disk_free_bytes'])} of {format_size(total)} free")
    if done := report["cleanup"]:
        click.echo(
            f"Last cleanup {local_seconds(done['finished_at'])}: {done['images']} images, "
            f"{done['containers']} containers, {format_size(done['freed_bytes'])} freed"
        )
        for error in done["errors"]:
            click.echo(f"  {error}")


_action("undrain", "Place jobs on NAME again.", "accepts jobs again.")
_action("release", "Release NAME from quarantine.", "gets jobs again.")
_action(
    "retire",
    "Take NAME out of service and keep its history. Fails while jobs run on it.",
    "is retired.",
)
_action("reinstate", "Return the retired appliance NAME to service.", "is back in service.")
