"""The `vedette` command.

Commands are imported when called: the agent runs without the server packages, and
`vedette --help` is fast.
"""

import faulthandler
import gc
import importlib
import sys
from typing import Any

import click

from core.errors import VedetteError
from core.private_files import create_files_privately

STDERR = 2
# Command -> (module, attribute, help text).
COMMANDS = {
    "up": ("cli.up", "up", "Start portal, scheduler and an agent for this host."),
    "server": ("cli.server", "server", "Run portal, agent API and scheduler in one process."),
    "portal": ("cli.server", "portal", "Run the portal alone."),
    "access": ("cli.server", "access", "Run the agent API alone."),
    "scheduler": ("cli.server", "scheduler", "Run the scheduler alone."),
    "relay": ("cli.relay", "relay", "Run an access point near the appliances."),
    "agent": ("cli.agent", "agent", "Enroll this appliance and run its agent."),
    "login": ("cli.login", "login", "Sign in to a portal and store an API token."),
    "logout": ("cli.login", "logout", "Revoke the stored API token and delete it."),
    "whoami": ("cli.login", "whoami", "Show the user that commands are run as."),
    "job": ("cli.job", "job", "Run, list, follow and stop jobs."),
    "project": ("cli.project", "project", "Manage projects, their members and quotas."),
    "market": ("cli.market", "market", "Rent appliances of other tenants, and offer yours."),
    "queue": ("cli.queue", "queue", "Show who is next in the queue, and how it is ordered."),
    "appliance": ("cli.appliance", "appliance", "List, enroll, drain and retire appliances."),
    "access-point": (
        "cli.access_point",
        "access_point",
        "Manage the addresses at which agents reach the portal.",
    ),
    "gpu-policy": ("cli.gpu_policy", "gpu_policy", "Set how GPUs are shared by jobs."),
    "data-settings": (
        "cli.data_settings",
        "data_settings",
        "Set where results go, and who serves datasets.",
    ),
    "dataset": ("cli.dataset", "dataset", "Add, upload and list datasets for jobs."),
    "cluster": ("cli.cluster", "cluster", "Name groups of appliances for jobs."),
    "write-token": ("cli.write_token", "write_token", "Manage tokens of hosts without the agent."),
    "rules": ("cli.rules", "rules", "List alert rules, and keep them in a file."),
    "dashboards": (
        "cli.dashboards",
        "dashboards",
        "List custom dashboards and saved views, and keep dashboards in a file.",
    ),
    "reports": ("cli.reports", "reports", "List, download and email saved reports."),
    "silence": ("cli.silence", "silence", "Silence alerts for some time."),
    "notification": ("cli.notification", "notification", "List notifications, send one again."),
    "budget": ("cli.budget", "budget", "Set what the tenant, projects and users may spend."),
    "ticket": ("cli.ticket", "ticket", "Ask for support, and answer."),
    "usage": ("cli.usage", "usage", "Show GPU time by user, job or GPU model."),
    "advice": ("cli.advice", "advice", "Show what GPUs have idle and are short of."),
    "billing": ("cli.billing", "billing", "Show prices, invoices and credit."),
    "query": ("cli.query", "query", "Print aggregates of samples as CSV."),
    "logs": ("cli.logs", "logs", "Search logs of jobs and appliances, and events."),
    "tenant": ("cli.tenant", "tenant", "Manage tenants and users in this server's database."),
    "ca": ("cli.ca", "ca", "Show and rotate the CA that signs agent certificates."),
    "audit": ("cli.audit", "audit", "Verify and export the audit log."),
    "secrets": ("cli.secrets", "secrets", "Rotate the key that encrypts stored secrets."),
    "registry": ("cli.registry", "registry", "Run the private registry for container images."),
    "backup": ("cli.backup", "backup", "Back this server up, list and verify its backups."),
    "restore": ("cli.restore", "restore", "Restore a server from a backup."),
    "db": ("cli.db", "db", "Migrate this server's database."),
    "wheelhouse": ("cli.wheelhouse", "wheelhouse", "Build the packages that appliances install."),
    "simulate": ("cli.simulate", "simulate", "Try placement policies on a trace of a cluster."),
    "store": ("cli.store", "store", "Inspect, migrate and export time series."),
    "version": ("cli.version", "version", "Show the version, and what it is made of."),
    "demo-fleet": ("cli.demo_fleet", "demo_fleet", ""),
}
NEEDS_SERVER_EXTRA = COMMANDS.keys() - {
    *(
        "agent",
        "login",
        "logout",
        "whoami",
        "job",
        "project",
        "market",
        "queue",
        "appliance",
        "access-point",
        "cluster",
        "data-settings",
        "gpu-policy",
        "dataset",
        "write-token",
        "rules",
        "dashboards",
        "reports",
        "silence",
        "notification",
        "budget",
        "ticket",
        "usage",
        "advice",
        "billing",
        "query",
        "logs",
        "version",
    )
}
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
        # Modules live as long as the process: to look for garbage takes a fifth of the start.
        gc.disable()
        try:
            command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            if cmd_name in NEEDS_SERVER_EXTRA:
                ctx.fail(
                    f"`vedette {cmd_name}` needs the server packages ({error.name} is missing). "
                    "Install them with: pip install 'vedette[server]'"
                )
            raise
        finally:
            gc.freeze()
            gc.enable()
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table."""
        rows = [(name, COMMANDS[name][2]) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="vedette")
def vedette() -> None:
    """Manage a fleet of GPU appliances."""


def main(argv: list[str] | None = None) -> Any:  # noqa: ANN401 - click's return value
    """Run the command; print an expected error as one message and exit with status 1."""
    create_files_privately()
    # A crash of native code leaves the stacks of all threads in the log.
    faulthandler.enable(STDERR)
    try:
        return vedette.main(args=argv, prog_name="vedette")
    except VedetteError as error:
        click.secho(f"vedette: {error.message}", fg="red", err=True)
        for field, messages in error.errors.items():
            click.echo(f"  {field}: {'; '.join(messages)}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
