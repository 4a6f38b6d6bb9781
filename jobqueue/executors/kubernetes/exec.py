"""Commands in the pods of attempts, over the exec WebSocket.

Source: Kubernetes' remote command protocol, v5.channel.k8s.io, and v4, which can't end the input.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from jobqueue.executors.base import ExecSession, ExecutorError
from jobqueue.executors.kubernetes.client import PODS, KubernetesAPI, Params
from jobqueue.executors.kubernetes.manifests import CONTAINER
from protocol.exec import Channel, TerminalSize, message

CLOSABLE, OLDER = Subprotocol("v5.channel.k8s.io"), Subprotocol("v4.channel.k8s.io")
OPEN_SECONDS = 10.0
MAX_MESSAGE_BYTES = 1024 * 1024
MAX_WORDS = 500


async def run_in_pod(api: KubernetesAPI, pod: str, session: ExecSession) -> int:
    """Run a command until it ends and return its exit code.

    Raises:
        ExecutorError: the cluster does not run it, in its own words.
    """
    path = f"{api.path(PODS, pod)}/exec"
    params = _params(session.command, is_terminal=session.size is not None)
    # Renewing a token may take a while.
    url, headers, context = await asyncio.to_thread(api.websocket, path, params)
    try:
        connection = await connect(
            url,
            ssl=context,
            additional_headers=headers,
            subprotocols=[CLOSABLE, OLDER],
            open_timeout=OPEN_SECONDS,
            max_size=MAX_MESSAGE_BYTES,
            proxy=None,
        )
    except InvalidStatus as error:
        words = bytes(error.response.body or b"")[:MAX_WORDS].decode(errors="replace")
        with suppress(ValueError, KeyError, TypeError):
            words = str(json.loads(words)["message"])
        status = error.response.status_code
        raise ExecutorError(f"The command can't be started ({status}): {words}") from error
    except (OSError, InvalidHandshake) as error:
        raise ExecutorError(f"The command can't be started: {error}") from error
    typing = asyncio.create_task(_pass_input(connection, session))
    try:
        return await _pass_output(connection, session)
    finally:
        # Nothing is awaited: at the end of the tunnel, the task is cancelled twice.
        typing.cancel()
        connection.transport.abort()


def _params(command: Sequence[str], *, is_terminal: bool) -> Params:
    # A terminal has one stream of output.
    streams = {"stdin": True, "stdout": True, "stderr": not is_terminal, "tty": is_terminal}
    return [
        ("container", CONTAINER),
        *((name, str(is_wanted).lower()) for name, is_wanted in streams.items()),
        *(("command", word) for word in command),
    ]


async def _pass_input(connection: ClientConnection, session: ExecSession) -> None:
    with suppress(ConnectionClosed):
        if session.size is not None:
            await connection.send(_resize(session.size))
        async for item in session.inputs():
            if isinstance(item, TerminalSize):
                await connection.send(_resize(item))
            else:
                await connection.send(message(Channel.STDIN, item))
        if connection.subprotocol == CLOSABLE:
            await connection.send(message(Channel.CLOSE, bytes((Channel.STDIN,))))


def _resize(size: TerminalSize) -> bytes:
    body = json.dumps({"Width": size.columns, "Height": size.rows})
    return message(Channel.RESIZE, body.encode())


async def _pass_output(connection: ClientConnection, session: ExecSession) -> int:
    try:
        async for received in connection:
            data = received.encode() if isinstance(received, str) else received
            if not data:
                continue
            channel, text = data[0], data[1:]
            if channel == Channel.STATUS:
                return _exit_code(text)
            if channel in {Channel.STDOUT, Channel.STDERR} and text:
                await session.output(text, is_error=channel == Channel.STDERR)
    except ConnectionClosed as error:
        raise ExecutorError(f"The cluster ended the session: {error}") from error
    raise ExecutorError("The cluster ended the session without the command's exit code.")


def _exit_code(text: bytes) -> int:
    """Return the exit code of a Status."""
    try:
        status = json.loads(text)
        if status.get("status") == "Success":
            return 0
        causes = (status.get("details") or {}).get("causes") or ()
        codes = [cause["message"] for cause in causes if cause.get("reason") == "ExitCode"]
        if codes:
            return int(codes[0])
        words = str(status.get("message"))
    except (ValueError, KeyError, TypeError, AttributeError):
        words = text[:MAX_WORDS].decode(errors="replace")
    raise ExecutorError(f"The command can't be started: {words}")
