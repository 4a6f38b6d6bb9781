"""What `vedette agent check` finds about an InfluxDB: whether it would take samples."""

import os
import socket

from collector.checking.findings import Finding, Verdict
from collector.config import AgentConfig
from collector.configuring.influxdb_settings import InfluxDBSettings
from collector.sending.answers import sentence_of
from collector.sending.influxdb_target import InfluxDBTarget
from collector.sending.tls import TLSContexts

SUCCESS = range(200, 300)
SHUT_OUT = frozenset({401, 403})
# A write without a line: some versions take it, others say that there is none.
NOTHING = b""
NO_LINES = 400
MISSING = 404


def check_writing(settings: InfluxDBSettings, config: AgentConfig, *, tls: TLSContexts) -> Finding:
    """Return whether credentials and destination are taken; nothing is written."""
    what = f"writing to {settings.url}"
    target = InfluxDBTarget(
        settings,
        appliance=config.name or socket.gethostname(),
        tls=tls,
        timeout_seconds=config.request_timeout_seconds,
        environ=os.environ,
    )
    try:
        answer = target.write(settings.url, NOTHING)
    except OSError as error:  # a secret's file, between the check of the settings and now
        return Finding(Verdict.FAIL, what, str(error), "Correct [influxdb].")
    finally:
        target.close()
    said = sentence_of(answer.body, otherwise=answer.reason)
    if answer.status in SUCCESS or answer.status == NO_LINES:
        return Finding(Verdict.OK, what, f"{settings.bucket or settings.database} takes samples")
    if answer.status in SHUT_OUT:
        advice = "Correct the token, or username and password, of [influxdb]."
    elif answer.status == MISSING:
        advice = "Make it there, or correct bucket or database of [influxdb]."
    else:
        advice = "Check the server."
    return Finding(Verdict.FAIL, what, f"{answer.status}: {said}", advice)
