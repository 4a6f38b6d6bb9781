"""`vedette agent check`: whether this appliance can do what its configuration says."""

import sys
from pathlib import Path

import click

from cli.agent_options import CONFIG_NAME, config_file_argument, data_dir_option
from collector.checking.checks import check_appliance
from collector.checking.findings import Finding, Verdict
from collector.config import AgentConfig, load_agent_config
from core.clock import utc_now
from core.errors import ConfigurationError

COLOURS = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAIL: "red"}


@click.command()
@config_file_argument
@data_dir_option
@click.option("--offline", is_flag=True, help="Check the file alone: no rights, no connection.")
def check(config_file: Path | None, *, data_dir: Path, offline: bool) -> None:
    """Check the configuration, this user's rights and the connection to the portal.

    CONFIG_FILE is the agent.toml in the data folder when left out. All faults of the file are
    named. The exit status is 1 when something FAILs; a warning is none.
    """
    path = config_file or data_dir / CONFIG_NAME
    if offline:
        load_agent_config(path)
        click.echo(f"{path} is in order.")
        return
    config = _load(path)
    is_well = config is not None
    for finding in check_appliance(config, clock=utc_now) if config is not None else ():
        _show(finding)
        is_well = is_well and finding.verdict is not Verdict.FAIL
    if not is_well:
        sys.exit(1)


def _load(path: Path) -> AgentConfig | None:
    try:
        config = load_agent_config(path)
    except ConfigurationError as error:
        for fault in error.faults:
            _show(Finding(Verdict.FAIL, "configuration", fault, f"Correct {path}."))
        return None
    _show(Finding(Verdict.OK, "configuration", f"{path} is in order"))
    return config


def _show(finding: Finding) -> None:
    verdict = click.style(f"{finding.verdict:<7}", fg=COLOURS[finding.verdict])
    advice = f". {finding.advice}" if finding.advice else ""
    click.echo(f"{verdict}  {finding.what}: {finding.says.rstrip('.')}{advice}")
