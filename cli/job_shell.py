"""`vedette job exec` and `vedette job shell`: commands and terminals in running jobs."""

import contextlib
import os
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator

import click

from core.errors import InvalidInputError
from vedette.client import Client
from vedette.exec import Exec, Size

CHUNK_BYTES = 32 * 1024


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.option("--interactive", "-i", is_flag=True, help="Pass the input of this command on.")
@click.option("--tty", "-t", "has_terminal", is_flag=True, help="In a terminal.")
@click.argument("name", metavar="JOB")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_command(
    name: str, command: tuple[str, ...], *, interactive: bool, has_terminal: bool
) -> None:
    """Run COMMAND in the container of a running JOB, and exit as it does."""
    if command[0] == "--":  # click leaves it where it follows JOB
        command = command[1:]
    if not command:
        raise click.UsageError("Missing argument 'COMMAND...'.")
    sys.exit(_run(name, command, is_interactive=interactive, has_terminal=has_terminal))


@click.command()
@click.argument("name", metavar="JOB")
def shell(name: str) -> None:
    """Open a shell in the container of a running JOB; the same as exec -it with its shell."""
    sys.exit(_run(name, (), is_interactive=True, has_terminal=True))


def _run(name: str, command: tuple[str, ...], *, is_interactive: bool, has_terminal: bool) -> int:
    if has_terminal and not sys.stdin.isatty():
        raise InvalidInputError(
            "The input is not a terminal. Leave --tty out, or run a command with: "
            "vedette job exec JOB COMMAND"
        )
    with (
        Client() as client,
        client.exec(name, command, size=_size() if has_terminal else None) as running,
        _raw_terminal(running) if has_terminal else contextlib.nullcontext(),
    ):
        if is_interactive:
            threading.Thread(target=_pass_input, args=(running,), daemon=True).start()
        else:
            running.close_input()
        return running.wait(_write)


def _pass_input(running: Exec) -> None:
    with contextlib.suppress(Exception):  # the command has ended
        while data := os.read(sys.stdin.fileno(), CHUNK_BYTES):
            running.write(data)
        running.close_input()


def _write(data: bytes, is_error: bool) -> None:  # noqa: FBT001 - see `Output`
    stream = sys.stderr.buffer if is_error else sys.stdout.buffer
    stream.write(data)
    stream.flush()


def _size() -> Size:
    columns, rows = shutil.get_terminal_size()
    return columns, rows


@contextlib.contextmanager
def _raw_terminal(running: Exec) -> Iterator[None]:
    """Pass every key and new sizes on, for the length of the block."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    former = signal.signal(signal.SIGWINCH, lambda *_: running.resize(_size()))
    tty.setraw(keyboard, termios.TCSANOW)  # what was typed ahead stays
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, former)
