"""`vedette notification`: list the notifications of alerts, and send one again."""

import click

from cli.client import output_option, print_items
from cli.local_time import local_minutes
from vedette.client import Client


@click.group()
def notification() -> None:
    """List notifications, and send one again."""


@notification.command("ls")
@click.option("--alert", "alert_id", help="ID of an alert.")
@output_option
def list_notifications(alert_id: str | None, output: str) -> None:
    """List the newest notifications."""
    with Client() as client:
        found = client.get("/notifications", alert_id=alert_id, page_size=100)["items"]
    if output == "table" and not found:
        click.echo("No notifications yet.", err=True)
        return
    columns = {
        "ID": [one["id"] for one in found],
        "STATE": [one["state"] for one in found],
        "RECEIVER": [one["receiver_name"] for one in found],
        "CREATED": [local_minutes(one["created_at"]) for one in found],
        "ATTEMPTS": [str(one["tries"]) for one in found],
        "LAST ERROR": [one["last_error"] for one in found],
    }
    print_items(found, output, columns=columns)


@notification.command()
@click.argument("notification_id", metavar="ID")
def redeliver(notification_id: str) -> None:
    """Send a notification again that was sent or has failed."""
    with Client() as client:
        found = client.post(f"/notifications/{notification_id}/redeliver", {})
    click.echo(f"Queued for {found['receiver_name']}")
