"""How users write data paths, datasets and ports of a job, in the form and on the command line."""

from protocol.job_spec import DatasetMount, HealthCheck, HealthCheckKind, Mount, Port

_MAX_DIGITS = 9


def parse_mount(text: str) -> Mount:
    """Return the data path of `SOURCE:TARGET`, read-only but for `SOURCE:TARGET:rw`.

    Raises:
        ValueError: says what is expected.
    """
    source, _, rest = text.strip().partition(":")
    target, _, mode = rest.partition(":")
    if not source or not target or mode not in {"", "ro", "rw"}:
        raise ValueError(f"{text!r} is not a data path; enter SOURCE:TARGET or SOURCE:TARGET:rw.")
    return Mount(source=source, target=target, is_read_only=mode != "rw")


def format_mount(mount: Mount) -> str:
    """Return a data path as `parse_mount` accepts it."""
    return f"{mount.source}:{mount.target}{'' if mount.is_read_only else ':rw'}"


def parse_dataset(text: str) -> DatasetMount:
    """Return the dataset of `NAME:TARGET`, the newest version, or of `NAME@VERSION:TARGET`.

    Raises:
        ValueError: says what is expected.
    """
    source, _, target = text.strip().partition(":")
    name, at, number = source.rpartition("@") if "@" in source else (source, "", "")
    is_version = not at or (number.isdecimal() and len(number) <= _MAX_DIGITS and int(number) > 0)
    if not name or not target or not is_version:
        raise ValueError(f"{text!r} is not a dataset; enter NAME:TARGET or NAME@VERSION:TARGET.")
    return DatasetMount(dataset=name, target=target, version=int(number or 0))


def format_dataset(mount: DatasetMount) -> str:
    """Return a dataset as `parse_dataset` accepts it."""
    version = f"@{mount.version}" if mount.version else ""
    return f"{mount.dataset}{version}:{mount.target}"


def parse_port(text: str) -> Port:
    """Return the port of `8888` or `web=8888`.

    Raises:
        ValueError: says what is expected.
    """
    name, equals, number = text.strip().rpartition("=")
    if not number.strip().isdecimal() or len(number) > 10 or (equals and not name.strip()):  # noqa: PLR2004
        raise ValueError(f"{text!r} is not a port; enter a number or NAME=NUMBER.")
    return Port(container_port=int(number), name=name.strip())


def format_port(port: Port) -> str:
    """Return a port as `parse_port` accepts it."""
    return f"{port.name}={port.container_port}" if port.name else str(port.container_port)


def parse_health_check(text: str) -> HealthCheck:
    """Return the check of `http:8000/health`, `tcp:5432` or `command:pg_isready`.

    Raises:
        ValueError: says what is expected.
    """
    kind, _, rest = text.strip().partition(":")
    if kind == "command" and rest.strip():
        return HealthCheck(kind=HealthCheckKind.COMMAND, command=rest.strip())
    number, slash, path = rest.partition("/")
    is_tcp = kind == "tcp" and not slash
    if not (is_tcp or kind == "http") or not number.isdecimal() or len(number) > 10:  # noqa: PLR2004
        raise ValueError(
            f"{text!r} is not a health check; "
            "enter http:PORT/PATH, tcp:PORT or command:SHELL COMMAND."
        )
    return HealthCheck(kind=HealthCheckKind(kind), port=int(number), path=f"/{path}")


def format_health_check(check: HealthCheck) -> str:
    """Return a check as `parse_health_check` accepts it."""
    if check.kind is HealthCheckKind.COMMAND:
        return f"command:{check.command}"
    path = check.path if check.kind is HealthCheckKind.HTTP else ""
    return f"{check.kind.value}:{check.port}{path}"
