"""`vedette server check`: everything that the server needs, with cause and remedy of each fault."""

import sys
from collections.abc import Sequence

import click

from cli.database_checks import Check
from cli.privileges import acting_as_owner
from cli.server_checks import all_checks
from core.settings import load_server_settings


@click.command()
def check() -> None:
    """Check settings, disk, database, keys, store, clock and mail.

    It changes nothing, and works while the server runs. The exit code is 1 if the server could not
    start.
    """
    settings = load_server_settings()
    with acting_as_owner(settings.data_dir):
        checks = all_checks(settings)
    print_checks(checks)
    sys.exit(1 if has_fatal(checks) else 0)


def print_checks(checks: Sequence[Check]) -> None:
    """Print a line for each check, and below it what is wrong and what to do."""
    for outcome in checks:
        is_fatal = any(problem.is_fatal for problem in outcome.problems)
        mark = "✗" if is_fatal else "!" if outcome.problems else "✓"
        color = "red" if is_fatal else "yellow" if outcome.problems else "green"
        click.secho(f"  {mark} ", fg=color, nl=False)
        click.echo(": ".join(filter(None, (outcome.name, outcome.detail))))
        for problem in outcome.problems:
            click.echo(f"      {problem.cause}")
            if problem.remedy:
                click.echo(f"      {problem.remedy}")


def has_fatal(checks: Sequence[Check]) -> bool:
    """Return whether a server could not start."""
    return any(problem.is_fatal for check in checks for problem in check.problems)
