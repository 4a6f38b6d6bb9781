"""The check of `[remote_write]`: a request without samples, as the running agent sends them."""

import os
from collections.abc import Iterator
from http import HTTPStatus

from collector.checks.connections import SUCCESS, UNAUTHORIZED, CheckResult, Verdict, check_name
from collector.config import AgentConfig
from collector.remote_write.credentials import CredentialsError
from collector.remote_write.encoding import write_request
from collector.remote_write.settings import RemoteWriteSettings
from collector.remote_write.writer import post
from collector.sending.http import HTTP_ERRORS, HTTPClient, error_message, root_cause
from collector.tls import TLSContexts


def check_remote_write_server(config: AgentConfig) -> Iterator[CheckResult]:
    """Check address, TLS, credentials and path of the server, without writing anything."""
    settings = config.remote_write
    if settings is None:
        return
    name = f"remote_write to {settings.url}"
    unresolved = check_name(settings.url, name, "remote_write.url")
    yield unresolved or _check_request(name, settings)


def _check_request(name: str, settings: RemoteWriteSettings) -> CheckResult:
    http = HTTPClient(TLSContexts(settings.tls_files), environ=os.environ)
    try:
        response = post(http, settings, write_request([]))
    except CredentialsError as error:
        advice = "Make the file readable for the agent's user, or correct [remote_write]."
        return CheckResult(Verdict.FAIL, name, error.message, advice)
    except HTTP_ERRORS as error:
        advice = "Check the network, firewalls, proxies, and the TLS files of [remote_write]."
        return CheckResult(Verdict.FAIL, name, f"does not answer: {root_cause(error)}", advice)
    finally:
        http.close()
    if response.status in SUCCESS:
        return CheckResult(Verdict.OK, name, "accepts samples")
    reason = error_message(response.data, default=response.reason or "")
    message = f"answered {response.status}: {reason}"
    if response.status == HTTPStatus.BAD_REQUEST:
        advice = "The check sends no samples, which some servers refuse; read the agent's log."
        return CheckResult(Verdict.WARNING, name, message, advice)
    if response.status in UNAUTHORIZED:
        advice = "Correct the credentials or headers of [remote_write]."
    elif response.status in {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}:
        advice = (
            "Correct the path of remote_write.url; Prometheus needs "
            "--web.enable-remote-write-receiver."
        )
    else:
        advice = "Check the server."
    return CheckResult(Verdict.FAIL, name, message, advice)
