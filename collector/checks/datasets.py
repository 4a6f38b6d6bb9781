"""Checks the cache of datasets: its folder and room, the extra `data`, the address for peers."""

import os
import shutil
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from collector.certificates import CERTIFICATE_NAME
from collector.checks.connections import CheckResult, Verdict
from collector.config import AgentConfig
from collector.datasets.build import CACHE_NAME
from core.quantities import format_size

NAME = "cache of datasets"
PEERS = "address for peers"


def check_datasets(config: AgentConfig) -> Iterator[CheckResult]:
    """Yield what keeps datasets from being fetched here; nothing where jobs don't run."""
    settings = config.datasets
    if not settings.enabled or config.executor == "none" or config.influxdb is not None:
        return
    if find_spec("obstore") is None:
        message = "the extra `data` is missing: jobs with datasets run elsewhere"
        yield CheckResult(Verdict.WARNING, NAME, message, "Run: pip install 'vedette[data]'")
        return
    yield _check_folder(config)
    if settings.peer_listen:
        yield _check_address(config)


def _check_folder(config: AgentConfig) -> CheckResult:
    folder = config.datasets.cache_dir or config.data_dir / CACHE_NAME
    existing = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    if not os.access(existing, os.W_OK | os.X_OK, effective_ids=True):
        message = f"this user (id {os.geteuid()}) can't write to {existing}"
        advice = f"Run: install -d -m 0700 -o vedette {folder}"
        return CheckResult(Verdict.FAIL, NAME, message, advice)
    try:
        free_bytes = shutil.disk_usage(existing).free
    except OSError as error:
        return CheckResult(Verdict.WARNING, NAME, f"unknown room: {error}")
    limit, stays = config.datasets.cache_max_bytes, config.datasets.min_free_bytes
    message = (
        f"{folder} may grow to {format_size(limit)}; the disk has {format_size(free_bytes)} free, "
        f"of which {format_size(stays)} stay free"
    )
    if free_bytes <= stays and not folder.exists():
        advice = "Set cache_dir in [datasets] to a disk with more room."
        return CheckResult(Verdict.WARNING, NAME, message, advice)
    return CheckResult(Verdict.OK, NAME, message)


def _check_address(config: AgentConfig) -> CheckResult:
    settings = config.datasets
    host, port = settings.peer_address
    if not (config.data_dir / CERTIFICATE_NAME).exists():
        message = f"{settings.peer_listen} is closed: the portal has issued no certificate yet"
        advice = "Use https:// in portal_urls; the running agent requests a certificate there."
        return CheckResult(Verdict.WARNING, PEERS, message, advice)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Port 0: the running agent has the other one.
        with socket.socket(family) as probe:
            probe.bind((host, 0))
    except OSError as error:
        message = f"{host} is no address of this host: {error.strerror or error}"
        return CheckResult(Verdict.FAIL, PEERS, message, "Correct peer_listen in [datasets].")
    return CheckResult(Verdict.OK, PEERS, f"peers reach port {port} at {settings.public_url}")
