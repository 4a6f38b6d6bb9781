"""Commands that users run in the container of an attempt.

In the tunnel each is an SSH session of the agent: its command is an `ExecRequest` as JSON, and it
has a pseudo terminal if the user has one. A session that can't begin ends with the signal
`REFUSED`, and its message says why.

Users and the portal exchange binary messages of a WebSocket. The first byte is the channel.

Source of the channels: Kubernetes' remote command protocol, v5.channel.k8s.io.
"""

from enum import IntEnum

import msgspec

REFUSED = "USR1"
# The best shell of the image.
SHELL = ("sh", "-c", 'exec "$(command -v bash || command -v ash || command -v sh)"')


class Channel(IntEnum):
    """What the rest of a message is; `STATUS` ends the session."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    STATUS = 3
    RESIZE = 4
    CLOSE = 255


class TerminalSize(msgspec.Struct, frozen=True):
    """The size of a terminal, the body of `RESIZE`."""

    columns: int
    rows: int


class ExecRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What should run where."""

    attempt_id: str
    command: list[str]


class ExecStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a session ended: by the end of the command, or for a reason."""

    exit_code: int | None = None
    code: str = ""
    message: str = ""


def message(channel: Channel, data: bytes) -> bytes:
    """Return a message of the WebSocket."""
    return bytes((channel,)) + data
