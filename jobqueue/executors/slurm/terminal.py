"""Commands of users in running jobs: steps by `srun --overlap`, with a terminal or with pipes.

srun must be reachable from the nodes: it listens on ports of this host (`SrunPortRange`).
"""

import asyncio
import contextlib
import fcntl
import os
import pty
import struct
import termios

from jobqueue.executors.base import ExecSession, ExecutorError
from jobqueue.executors.slurm.commands import SlurmCommands
from protocol.exec import TerminalSize

CHUNK_BYTES = 32 * 1024
END_SECONDS = 5.0


async def run_step(api: SlurmCommands, job_id: int, session: ExecSession) -> int:
    """Run a command until it ends and return its exit code; it is ended if this is cancelled.

    Raises:
        ExecutorError: srun can't be run.
    """
    argv = [api.program("srun"), f"--jobid={job_id}", "--overlap", "--ntasks=1", "--quiet"]
    environ = api.environment(**({"TERM": session.term} if session.size else {}))
    if session.size is not None:
        return await _with_terminal([*argv, "--pty", *session.command], environ, session)
    return await _with_pipes([*argv, "--unbuffered", *session.command], environ, session)


async def _with_pipes(argv: list[str], environ: dict[str, str], session: ExecSession) -> int:
    pipe = asyncio.subprocess.PIPE
    process = await _started(argv, environ, stdin=pipe, stdout=pipe, stderr=pipe)
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise ExecutorError("srun has no pipes.")

    async def pass_on(reader: asyncio.StreamReader, *, is_error: bool) -> None:
        while data := await reader.read(CHUNK_BYTES):
            await session.output(data, is_error=is_error)

    async def type_in(writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            async for item in session.inputs():
                if not isinstance(item, TerminalSize):
                    writer.write(item)
                    await writer.drain()
            writer.write_eof()

    typing = asyncio.create_task(type_in(process.stdin))
    try:
        await asyncio.gather(
            pass_on(process.stdout, is_error=False), pass_on(process.stderr, is_error=True)
        )
        return await process.wait()
    finally:
        typing.cancel()
        _end(process)


async def _with_terminal(argv: list[str], environ: dict[str, str], session: ExecSession) -> int:
    main, terminal = pty.openpty()
    try:
        if session.size is not None:
            _resize(main, session.size)
        process = await _started(argv, environ, stdin=terminal, stdout=terminal, stderr=terminal)
    except BaseException:
        os.close(main)
        raise
    finally:
        os.close(terminal)

    async def type_in() -> None:
        async for item in session.inputs():
            if isinstance(item, TerminalSize):
                _resize(main, item)
            else:
                await asyncio.to_thread(os.write, main, item)

    typing = asyncio.create_task(type_in())
    try:
        while data := await asyncio.to_thread(_read, main):
            await session.output(data, is_error=False)
        return await process.wait()
    finally:
        typing.cancel()
        _end(process)
        # A thread may still read: the end of srun ends it.
        asyncio.get_running_loop().call_later(END_SECONDS, _close, main)


async def _started(
    argv: list[str], environ: dict[str, str], *, stdin: int, stdout: int, stderr: int
) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=environ,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise ExecutorError(f"srun can't be run: {error}") from error


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, CHUNK_BYTES)
    except OSError:  # its other end is closed
        return b""


def _resize(descriptor: int, size: TerminalSize) -> None:
    with contextlib.suppress(OSError):
        packed = struct.pack("HHHH", size.rows, size.columns, 0, 0)
        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, packed)


def _end(process: asyncio.subprocess.Process) -> None:
    """Let srun end what it runs."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)
