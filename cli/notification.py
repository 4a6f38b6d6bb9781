"""`vedette notification`: list the notifications of alerts, and send one again."""

import click

from cli.client import Columns, output_option, print_rows
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
        notifications = client.get("/notifications", alert_id=alert_id, page_size=100)["items"]
    columns: Columns = {
        "ID": "id",
        "STATE": "state",
        "RECEIVER": "receiver_name",
        "CREATED": lambda row: local_minutes(row["created_at"]),
        "ATTEMPTS": "tries",
        "LAST ERROR": "last_error",
    }
    print_rows(notifications, output, columns, empty="No notifications yet.")


@notification.command()
@click.argument("notification_id", metavar="ID")
def redeliver(notification_id: str) -> None:
    """Send a notification again that was sent or has failed."""
    with Client() as client:
        notification = client.post(f"/notifications/{notification_id}/redeliver", {})
    click.echo(f"Queued for {notification['receiver_name']}")
