"""The `vedette` command.

Commands are imported only when called, so that the agent runs on an appliance without the
server's packages, and `vedette --help` answers at once.
"""

import importlib
import sys
from typing import Any

import click

from core.errors import VedetteError

# Command -> (module, attribute, help line shown without importing the module).
COMMANDS = {
    "up": ("cli.up", "up", "Start portal, scheduler and an agent for this host."),
    "server": ("cli.server", "server", "Run portal, access and scheduler in one process."),
    "agent": ("cli.agent", "agent", "Enrol this appliance and run its agent."),
    "login": ("cli.login", "login", "Sign in to a portal and keep an API token."),
    "job": ("cli.job", "job", "Run, list, follow and stop jobs."),
    "appliance": ("cli.appliance", "appliance", "List appliances and make enrolment tokens."),
    "tenant": ("cli.tenant", "tenant", "Manage tenants and users in this server's database."),
    "ca": ("cli.ca", "ca", "Show and rotate the authority that signs agents' certificates."),
    "audit": ("cli.audit", "audit", "Check and export the audit log."),
    "secrets": ("cli.secrets", "secrets", "Change the key that encrypts stored secrets."),
    "db": ("cli.db", "db", "Migrate this server's database."),
    "store": ("cli.store", "store", "Move samples to another store, and export them."),
    "demo-fleet": ("cli.demo.fleet", "demo_fleet", ""),
}
NEEDS_SERVER_EXTRA = {
    "up", "server", "tenant", "ca", "audit", "secrets", "db", "store", "demo-fleet",
}  # fmt: skip
HIDDEN = {"demo-fleet"}


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the public commands, in the order of the table."""
        return [name for name in COMMANDS if name not in HIDDEN]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _help = COMMANDS[cmd_name]
        try:
            command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            if cmd_name in NEEDS_SERVER_EXTRA:
                ctx.fail(
                    f"`vedette {cmd_name}` needs the server's packages ({error.name} is missing). "
                    "Install them with: pip install 'vedette[server]'"
                )
            raise
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table."""
        rows = [(name, COMMANDS[name][2]) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="vedette")
def vedette() -> None:
    """Run your GPU appliances from one place."""


def main(argv: list[str] | None = None) -> Any:  # noqa: ANN401 - click's return value
    """Run the command; print a known error as one message and exit with 1."""
    try:
        return vedette.main(args=argv, prog_name="vedette")
    except VedetteError as error:
        click.secho(f"vedette: {error.message}", fg="red", err=True)
        for field, faults in error.errors.items():
            click.echo(f"  {field}: {'; '.join(faults)}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
