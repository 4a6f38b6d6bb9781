"""`vedette job logs` and `attach`: the output of jobs."""

import sys

import click

from cli.job_common import SIZE
from vedette.client import Client
from vedette.jobs import Job, LogLine

# The size of the log's end that `attach` shows first.
ATTACH_BYTES = 4096


@click.command()
@click.argument("name", metavar="JOB")
@click.option("--follow", "-f", is_flag=True, help="Follow the log until the job ends.")
@click.option("--tail", type=SIZE, help="Begin this long before the end, such as 64KiB.")
@click.option("--timestamps", "-t", is_flag=True, help="Print the time of each line.")
@click.option("--stream", type=click.Choice(["stdout", "stderr"]), help="Print only one stream.")
def logs(
    name: str, *, follow: bool, tail: int | None, timestamps: bool, stream: str | None
) -> None:
    """Print the log of a JOB; with --follow, exit as the job does."""
    with Client() as client:
        if follow:
            sys.exit(follow_job(client, name, tail, with_times=timestamps, stream=stream))
        for line in client.log_lines(name, tail_bytes=tail):
            _print_line(line, with_times=timestamps, stream=stream)


@click.command()
@click.argument("name", metavar="JOB")
def attach(name: str) -> None:
    """Follow a JOB from now on; Ctrl-C detaches, and the job continues."""
    with Client() as client:
        try:
            sys.exit(follow_job(client, name, ATTACH_BYTES))
        except KeyboardInterrupt:
            click.secho(f"\nDetached. Stop the job with: vedette job stop {name}", err=True)


def follow_job(
    client: Client,
    name: str,
    tail_bytes: int | None = None,
    *,
    with_times: bool = False,
    stream: str | None = None,
) -> int:
    """Print the log and state changes until the job ends; return the exit status."""
    job = client.job(name)

    def report(changed: Job) -> None:
        nonlocal job
        job = changed
        # The last lines of the log may follow the end.
        if not job.has_ended:
            _print_state(job)

    lines = client.log_lines(job.id, follow=True, tail_bytes=tail_bytes, on_change=report)
    for line in lines:
        _print_line(line, with_times=with_times, stream=stream)
    _print_state(job)
    return job.exit_status


def _print_state(job: Job) -> None:
    where = f" on {job.appliance_name}" if job.appliance_name else ""
    click.secho(f"[{job.state}{where}] {job.message}".rstrip(), dim=True, err=True)


def _print_line(line: LogLine, *, with_times: bool, stream: str | None) -> None:
    """Print a line where the job wrote it: to stdout or stderr."""
    if stream in {None, line.stream} or line.stream == "output":
        at = f"{line.at} " if with_times and line.at else ""
        click.echo(f"{at}{line.text}", nl=not line.is_open, err=line.stream == "stderr")
