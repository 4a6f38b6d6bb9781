"""A member of a gang in its container: the first leads, the others run what it sends.

    member.py lead COMMAND...         start what the others need, run the command, end them
    member.py serve                   run what others send, until the first member has ended
    member.py launch HOST COMMAND...  run a command on a member, in place of ssh

The Python of the image runs it, so it imports the standard library alone, and only what Python 3.8
has. Members authenticate each other by the gang's secret: both sides of a connection send a random
number, and each frame that follows has a code from these, the secret and its place in the order.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import IO, Any, Mapping, NoReturn, Sequence  # noqa: UP035 - Python 3.8

SECRET = "VEDETTE_GANG_SECRET"  # noqa: S105 - the name of a variable
# ssh has the same code for errors of its own.
OWN_ERROR = 255
NOT_EXECUTABLE, NOT_FOUND = 126, 127
SIGNAL_BASE = 128
NONCE_BYTES = 16
CODE_BYTES = 16
MAX_FRAME_BYTES = 1 << 20
READ_BYTES = 1 << 16
CONNECT_SECONDS = 10.0
RETRY_SECONDS = 0.5
REAP_SECONDS = 0.2
NOTICE_SECONDS = 30.0
KILL_SECONDS = 10.0
DRAIN_SECONDS = 2.0
# The first member waits so long for the others, unless the job sets VEDETTE_GANG_JOIN_SECONDS.
JOIN_SECONDS = 1800.0
REQUEST, STDIN, STDOUT, STDERR, SIGNAL, EXIT = b"R", b"I", b"O", b"E", b"S", b"X"
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_HEADER = struct.Struct(">cI")
_WAIT_FOR_NODES = """
import sys, time, ray
until = time.time() + float(sys.argv[2])
ray.init(log_to_driver=False, logging_level="ERROR")
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[1]):
    if time.time() > until:
        sys.exit("vedette: not all members have joined the Ray cluster in time")
    time.sleep(0.5)
"""


class LauncherError(Exception):
    """A member can't be reached, or is not one of this gang."""


class Gang:
    """The gang as the environment describes it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        try:
            self.rank = int(environment["VEDETTE_GANG_RANK"])
            self.hosts = environment["VEDETTE_GANG_MEMBERS"].split(",")
            self.port = int(environment["VEDETTE_GANG_PORT"])
            self.secret = environment[SECRET].encode()
            self.join_seconds = float(environment.get("VEDETTE_GANG_JOIN_SECONDS", JOIN_SECONDS))
        except (KeyError, ValueError) as error:
            raise LauncherError(f"the environment describes no gang: {error}") from error
        self.framework = environment.get("VEDETTE_GANG_FRAMEWORK", "mpi")
        self.ray_options = environment.get("VEDETTE_RAY_OPTIONS", "")
        self.ray_address = environment.get("RAY_ADDRESS", "")

    @property
    def others(self) -> list[int]:
        """The ranks of the other members."""
        return [rank for rank in range(len(self.hosts)) if rank != self.rank]

    def rank_of(self, host: str) -> int:
        """Return the rank of a member by its name or address."""
        if host in self.hosts:
            return self.hosts.index(host)
        with contextlib.suppress(OSError):
            addresses = [socket.gethostbyname(name) for name in self.hosts]
            return addresses.index(socket.gethostbyname(host))
        raise LauncherError(f"{host} is not a member of this gang: {', '.join(self.hosts)}")

    def connect(self, rank: int) -> Connection:
        """Return a connection to the server of a member."""
        where = (self.hosts[rank], self.port + rank)
        return Connection(socket.create_connection(where, timeout=CONNECT_SECONDS), self.secret)

    def ask(self, rank: int, **request: object) -> None:
        """Send a request that is answered at once."""
        with contextlib.closing(self.connect(rank)) as connection:
            connection.send(REQUEST, json.dumps(request).encode())
            connection.receive()


class Connection:
    """Frames between two members, each with a code that only members can compute."""

    def __init__(self, connected: socket.socket, secret: bytes, *, is_server: bool = False) -> None:
        self._socket = connected
        self._stream = connected.makefile("rb")
        self._lock = threading.Lock()
        connected.settimeout(CONNECT_SECONDS)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        own = os.urandom(NONCE_BYTES)
        connected.sendall(own)
        other = self._exactly(NONCE_BYTES)
        nonces = other + own if is_server else own + other
        self._key = hmac.new(secret, b"vedette" + nonces, hashlib.sha256).digest()
        self._sides = (b"s", b"c") if is_server else (b"c", b"s")
        self._sent = self._received = 0

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Send a frame; any thread may."""
        with self._lock:
            code = self._code(self._sides[0], self._sent, kind + payload)
            self._sent += 1
            self._socket.sendall(_HEADER.pack(kind, len(payload)) + payload + code)

    def receive(self) -> tuple[bytes, bytes]:
        """Return kind and payload of the next frame.

        Raises:
            EOFError: the other side has closed.
            LauncherError: the frame is not a member's.
        """
        kind, size = _HEADER.unpack(self._exactly(_HEADER.size))
        if size > MAX_FRAME_BYTES:
            raise LauncherError(f"a frame of {size} bytes is too large")
        payload, code = self._exactly(size), self._exactly(CODE_BYTES)
        expected = self._code(self._sides[1], self._received, kind + payload)
        if not hmac.compare_digest(code, expected):
            raise LauncherError("the other side does not have the secret of this gang")
        self._received += 1
        return kind, payload

    def set_patient(self) -> None:
        """Let the frames that follow take any time."""
        self._socket.settimeout(None)

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._stream.close()
        self._socket.close()

    def _code(self, side: bytes, number: int, text: bytes) -> bytes:
        signed = side + struct.pack(">Q", number) + text
        return hmac.new(self._key, signed, hashlib.sha256).digest()[:CODE_BYTES]

    def _exactly(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise EOFError("the other side has closed the connection")
        return data


class Processes:
    """The child processes of this one, which may be the first of its container."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own: dict[int, subprocess.Popen[bytes]] = {}

    def start(
        self,
        command: Sequence[str],
        **options: Any,  # noqa: ANN401 - those of Popen
    ) -> subprocess.Popen[bytes]:
        """Start a command in a session of its own."""
        with self._lock:
            process = subprocess.Popen(command, start_new_session=True, **options)  # noqa: S603
            self._own[process.pid] = process
        return process

    def wait(self, process: subprocess.Popen[bytes]) -> int:
        """Return the exit code of a child, by the convention of shells."""
        code = process.wait()
        with self._lock:
            self._own.pop(process.pid, None)
        return code if code >= 0 else SIGNAL_BASE - code

    def reap_forever(self, ended: threading.Event) -> None:
        """Reap orphans, which nobody else does in a container, until the event."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while not ended.wait(REAP_SECONDS):
            with self._lock, contextlib.suppress(ChildProcessError):
                dead = os.waitid(os.P_ALL, 0, flags)
                while dead is not None and dead.si_pid not in self._own:
                    os.waitpid(dead.si_pid, os.WNOHANG)
                    dead = os.waitid(os.P_ALL, 0, flags)

    def stop(self) -> None:
        """End all, and wait for them."""
        with self._lock:
            processes = list(self._own.values())
        for process in processes:
            signal_group(process, signal.SIGTERM)
        until = time.monotonic() + KILL_SECONDS
        for process in processes:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                signal_group(process, signal.SIGKILL)


class Server:
    """Runs what other members send."""

    def __init__(self, gang: Gang, processes: Processes) -> None:
        self._gang = gang
        self._processes = processes
        self.ended = threading.Event()
        self.exit_code = 0
        own = (gang.hosts[gang.rank], gang.port + gang.rank)
        self._listener = socket.create_server(own, backlog=256)
        threading.Thread(target=self._accept, daemon=True).start()

    def end(self, exit_code: int) -> None:
        """End this member with a code; the first one counts."""
        if not self.ended.is_set():
            self.exit_code = exit_code
            self.ended.set()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError as error:
                say(f"can't accept connections: {error}")
                time.sleep(1)
            else:
                threading.Thread(target=self._answer, args=(connected,), daemon=True).start()

    def _answer(self, connected: socket.socket) -> None:
        with connected:
            try:
                connection = Connection(connected, self._gang.secret, is_server=True)
                _, payload = connection.receive()
                self._do(connection, json.loads(payload))
                connection.close()
            except LauncherError as error:
                say(f"refused a connection: {error}")
            except (OSError, EOFError):
                pass  # a member that ends

    def _do(self, connection: Connection, request: Mapping[str, Any]) -> None:
        if request["action"] == "run":
            connection.set_patient()
            exit_code = self._run(connection, request["command"])
        elif request["action"] == "be":
            connection.set_patient()
            exit_code = self._be(request["command"])
        else:  # "end", or "greet"
            exit_code = 0
        connection.send(EXIT, str(exit_code).encode())
        if request["action"] == "end":
            self.end(0)

    def _be(self, command: str) -> int:
        """Run a command as this member: its output and its exit code are the member's."""
        process = self._processes.start(["/bin/sh", "-c", command], stdin=subprocess.DEVNULL)
        exit_code = self._processes.wait(process)
        self.end(exit_code)
        return exit_code

    def _run(self, connection: Connection, command: str) -> int:
        """Run a command for the other side, with its input, output and signals."""
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = self._processes.start(["/bin/sh", "-c", command], **pipes)
        readers = [
            threading.Thread(target=send_output, args=(stream, connection, kind), daemon=True)
            for stream, kind in ((process.stdout, STDOUT), (process.stderr, STDERR))
        ]
        for thread in (*readers, threading.Thread(target=obey, args=(connection, process))):
            thread.daemon = True
            thread.start()
        exit_code = self._processes.wait(process)
        # A daemon that it leaves may have its streams.
        until = time.monotonic() + DRAIN_SECONDS
        for thread in readers:
            thread.join(max(0.0, until - time.monotonic()))
        return exit_code


def send_output(stream: IO[bytes], connection: Connection, kind: bytes) -> None:
    """Send what a command prints."""
    with contextlib.suppress(OSError, ValueError):
        while data := os.read(stream.fileno(), READ_BYTES):
            connection.send(kind, data)


def obey(connection: Connection, process: subprocess.Popen[bytes]) -> None:
    """Pass input and signals to a command, which ends when the other side does."""
    try:
        while True:
            kind, payload = connection.receive()
            if kind == SIGNAL:
                signal_group(process, int(payload))
            elif kind == STDIN and process.stdin is not None:
                with contextlib.suppress(OSError, ValueError):
                    if payload:
                        process.stdin.write(payload)
                        process.stdin.flush()
                    else:
                        process.stdin.close()
    except (OSError, EOFError, LauncherError, ValueError):
        signal_group(process, signal.SIGHUP)


def signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a command with its children."""
    if process.returncode is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, number)


def serve(gang: Gang) -> int:
    """Run what others send until the first member has ended well, or this one is stopped."""
    processes = Processes()
    server = Server(gang, processes)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda caught, _: server.end(SIGNAL_BASE + caught))
    say(f"member {gang.rank} of {len(gang.hosts)} is ready")
    processes.reap_forever(server.ended)
    processes.stop()
    return server.exit_code


def lead(gang: Gang, command: Sequence[str]) -> int:
    """Run the command of the job when all members are there; end them when it ends well."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda caught, _: os._exit(SIGNAL_BASE + caught))
    processes = Processes()
    server = Server(gang, processes)
    wait_for_others(gang)
    exit_code = start_ray(gang, processes) if gang.framework == "ray" else 0
    if exit_code:
        return exit_code
    exit_code = run_command(command, processes, server.ended)
    if exit_code == 0:
        # Else the portal decides: they stop, or start again with this one.
        for rank in gang.others:
            with contextlib.suppress(OSError, EOFError, LauncherError):
                gang.ask(rank, action="end")
    return exit_code


def run_command(command: Sequence[str], processes: Processes, ended: threading.Event) -> int:
    """Run the command of the job, with the signals that this process gets."""
    early: list[int] = []  # while it starts
    for number in FORWARDED:
        signal.signal(number, lambda caught, _: early.append(caught))
    try:
        process = processes.start(command)
    except OSError as error:
        say(f"can't run {command[0]}: {error.strerror}")
        return NOT_EXECUTABLE if isinstance(error, PermissionError) else NOT_FOUND
    for number in FORWARDED:
        signal.signal(number, lambda caught, _: signal_group(process, caught))
    for caught in early:
        signal_group(process, caught)
    threading.Thread(target=processes.reap_forever, args=(ended,), daemon=True).start()
    return processes.wait(process)


def wait_for_others(gang: Gang) -> None:
    """Return when the servers of all members answer.

    Raises:
        LauncherError: names those that don't.
    """
    missing, begin = gang.others, time.monotonic()
    notice = begin + NOTICE_SECONDS / 3
    while missing:
        reason = ""
        for rank in tuple(missing):
            try:
                gang.ask(rank, action="greet")
                missing.remove(rank)
            except (OSError, EOFError) as error:
                reason = f"member {rank}: {error}"
        names = ", ".join(gang.hosts[rank] for rank in missing)
        if missing and time.monotonic() - begin > gang.join_seconds:
            raise LauncherError(
                f"{names} did not start within {gang.join_seconds:.0f} s ({reason})"
            )
        if missing and time.monotonic() > notice:
            say(f"waiting for {names} to start")
            notice = time.monotonic() + NOTICE_SECONDS
        if missing:
            time.sleep(RETRY_SECONDS)


def start_ray(gang: Gang, processes: Processes) -> int:
    """Start a Ray head here and a node on each other member; return 0 when all have joined."""
    addresses = [socket.gethostbyname(host) for host in gang.hosts]
    port = gang.ray_address.rpartition(":")[2]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    common = shlex.split(gang.ray_options)
    head = ["ray", "start", "--head", f"--node-ip-address={addresses[gang.rank]}"]
    try:
        process = processes.start([*head, f"--port={port}", *common], env=environment)
    except FileNotFoundError:
        say("the image has no ray in its PATH; install it: pip install ray")
        return NOT_FOUND
    exit_code = processes.wait(process)
    if exit_code:
        say(f"the Ray head did not start: exit code {exit_code}")
        return exit_code
    for rank in gang.others:
        node = f"--address={addresses[gang.rank]}:{port} --node-ip-address={addresses[rank]}"
        joining = f"unset RAY_ADDRESS; exec ray start --block {node} {gang.ray_options}"
        connection = gang.connect(rank)
        connection.set_patient()
        connection.send(REQUEST, json.dumps({"action": "be", "command": joining}).encode())
    say(f"waiting for {len(gang.hosts)} members in the Ray cluster")
    counting = [sys.executable, "-c", _WAIT_FOR_NODES, str(len(gang.hosts))]
    return processes.wait(processes.start([*counting, str(gang.join_seconds)]))


def launch(gang: Gang, words: Sequence[str]) -> int:
    """Run a command on a member as ssh does: with input, output, signals and its exit code."""
    host, *command = without_options(words)
    connection = gang.connect(gang.rank_of(host))
    request = {"action": "run", "command": " ".join(command)}
    connection.send(REQUEST, json.dumps(request).encode())
    connection.set_patient()
    for number in FORWARDED:
        signal.signal(number, lambda caught, _: connection.send(SIGNAL, str(caught).encode()))
    threading.Thread(target=send_input, args=(connection,), daemon=True).start()
    while True:
        kind, payload = connection.receive()
        if kind == EXIT:
            return int(payload)
        stream = sys.stdout.buffer if kind == STDOUT else sys.stderr.buffer
        with contextlib.suppress(OSError):
            stream.write(payload)
            stream.flush()


def without_options(words: Sequence[str]) -> Sequence[str]:
    """Return host and command without the options of ssh and rsh before them.

    Raises:
        LauncherError: there is no host or no command.
    """
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in {"-l", "-o", "-p", "-i", "-F"}:  # they have a value
            rest = rest[1:]
    if len(rest) < 2:  # noqa: PLR2004 - host and command
        raise LauncherError("launch needs a host and a command")
    return rest


def send_input(connection: Connection) -> None:
    """Send what this process reads."""
    with contextlib.suppress(OSError, ValueError):
        while data := os.read(sys.stdin.fileno(), READ_BYTES):
            connection.send(STDIN, data)
        connection.send(STDIN)


def say(text: str) -> None:
    """Print a line in the log of this member."""
    print(f"vedette: {text}", file=sys.stderr, flush=True)  # noqa: T201 - its log


def main(arguments: Sequence[str]) -> NoReturn:
    """Run the part of a member that the first argument names."""
    part, *words = arguments
    try:
        gang = Gang(os.environ)
        parts = {"lead": lead, "launch": launch}
        exit_code = serve(gang) if part == "serve" else parts[part](gang, words)
    except (LauncherError, OSError, EOFError) as error:
        say(str(error))
        exit_code = OWN_ERROR
    sys.stdout.flush()
    # Threads that read don't end.
    os._exit(exit_code)


if __name__ == "__main__":
    main(sys.argv[1:])
