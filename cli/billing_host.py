"""Commands of `vedette billing` on this server's database."""

import sys
from datetime import UTC, datetime

import click

from cli.database import open_database
from core.clock import utc_now
from core.money import format_amount
from core.settings import load_server_settings
from jobqueue.usage.measuring import Period
from marketplace.charges.replay import replay
from marketplace.charges.service import accrue
from marketplace.invoices.closing import close_months
from marketplace.invoices.documents import Issuing
from marketplace.invoices.replay import replay_documents


def replay_all(since: datetime, until: datetime | None) -> None:
    """Print what a period's lines and documents should be; exit with 1 if they are others."""
    settings = load_server_settings()
    end_at = utc_now() if until is None else until.replace(tzinfo=UTC)
    period = Period(since.replace(tzinfo=UTC), end_at)
    currency = settings.billing_currency
    with open_database(settings) as (_engine, sessions):
        lines = replay(sessions, period)
        closings, problems = replay_documents(sessions, since=period.since, until=period.until)
    click.echo(
        f"{lines.rows:,} rows of the ledger cost {format_amount(lines.expected, currency)}; "
        f"{format_amount(lines.charged, currency)} was charged."
    )
    if lines.waiting_hours:
        click.echo(f"{lines.waiting_hours:,} hours are not charged yet.")
    if lines.orphans:
        click.echo(f"{lines.orphans:,} lines are of tenants that were removed.")
    click.echo(f"{closings:,} closings were computed again.")
    for difference in lines.differences:
        click.secho(difference.text(currency), fg="red", err=True)
    for problem in problems:
        click.secho(problem, fg="red", err=True)
    if lines.difference_count or problems:
        click.echo(f"{lines.difference_count + len(problems):,} differences.", err=True)
        sys.exit(1)
    click.echo("Nothing differs.")


def close_due() -> None:
    """Charge what is not charged, and close the months that are due."""
    settings, added = load_server_settings(), 0
    with open_database(settings) as (_engine, sessions):
        while count := accrue(sessions, now=utc_now()):
            added += count
        months = close_months(sessions, Issuing.of(settings), now=utc_now())
    closed = ", ".join(f"{month_at:%Y-%m}" for month_at in months) or "none"
    click.echo(f"{added:,} lines added; months closed: {closed}.")
