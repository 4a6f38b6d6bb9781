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
        notifications = client.get("/notifications", alert_id=alert_id, page_size=100)["items"]
    if output == "table" and not notifications:
        click.echo("No notifications yet.", err=True)
        return
    columns = {
        "ID": [notification["id"] for notification in notifications],
        "STATE": [notification["state"] for notification in notifications],
        "RECEIVER": [notification["receiver_name"] for notification in notifications],
        "CREATED": [local_minutes(notification["created_at"]) for notification in notifications],
        "ATTEMPTS": [str(notification["tries"]) for notification in notifications],
        "LAST ERROR": [notification["last_error"] for notification in notifications],
    }
    print_items(notifications, output, columns=columns)


@notification.command()
@click.argument("notification_id", metavar="ID")
def redeliver(notification_id: str) -> None:
    """Send a notification again that was sent or has failed."""
    with Client() as client:
        notification = client.post(f"/notifications/{notification_id}/redeliver", {})
    click.echo(f"Queued for {notification['receiver_name']}")
