"""What `vedette agent check` finds about the client certificate: which is shown, and until when."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from collector.certificates.own_certificate import (
    CERTIFICATE_NAME,
    OwnCertificate,
    load_trouble,
)
from collector.certificates.validity import Validity, validity_of
from collector.checking.findings import Finding, Verdict
from collector.config import AgentConfig
from collector.errors import CertificateError
from core.clock import Clock

WHAT = "client certificate"
HOUR_SECONDS = 3600.0
DAY_SECONDS = 86_400.0
# Before that it is good for so long yet, somebody should have renewed it.
SOON_SECONDS = 14 * DAY_SECONDS
SOON_RATIO = 0.2
# By so much of its lifetime the portal's own may be renewed late before that is worth a word.
LATE_RATIO = 0.1
ASK_OWNER = "Renew it; the agent takes up the new file without a restart."
SEE_AGENT = "The agent renews it by itself with its secret: see that it runs, and what it logs."


def check_certificate(config: AgentConfig, *, clock: Clock) -> Iterator[Finding]:
    """Yield which certificate is shown to whom asks for one, and until when it is good."""
    own = config.data_dir / CERTIFICATE_NAME
    if config.client_certificate_file is not None:
        yield _configured(config.client_certificate_file, own, now=clock())
        return
    if config.influxdb is not None or not any(_is_tls(url) for url in config.portal_urls):
        return
    if own.exists():
        yield _own(OwnCertificate(config.data_dir), now=clock())
    else:
        says = "none yet; a portal that gives certificates gives one to the running agent"
        yield Finding(Verdict.OK, WHAT, says)
    if (trouble := load_trouble(config.data_dir)) is not None:
        says = f"since {_moment(trouble.since)} it can't be renewed: {trouble.reason}"
        advice = "The agent goes on trying; nothing is lost as long as the present one is good."
        yield Finding(Verdict.WARNING, "renewal of the certificate", says, advice)


def _configured(path: Path, own: Path, *, now: datetime) -> Finding:
    try:
        validity = validity_of(path)
    except CertificateError as error:
        return Finding(Verdict.FAIL, WHAT, error.message, "Correct client_certificate_file.")
    instead = ", in place of the one that the portal gave" if own.exists() else ""
    says = f"{path} is shown{instead}, {_good_until(validity, now)}"
    if not validity.begins_at <= now < validity.ends_at:
        return Finding(Verdict.FAIL, WHAT, says, ASK_OWNER)
    soon_seconds = min(SOON_SECONDS, validity.lifetime_seconds * SOON_RATIO)
    if validity.remaining_seconds(now) < soon_seconds:
        return Finding(Verdict.WARNING, WHAT, says, ASK_OWNER)
    return Finding(Verdict.OK, WHAT, says)


def _own(own: OwnCertificate, *, now: datetime) -> Finding:
    try:
        validity = validity_of(own.path)
    except CertificateError as error:
        return Finding(Verdict.FAIL, WHAT, error.message, SEE_AGENT)
    says = f"the portal's is shown, {_good_until(validity, now)}"
    if not validity.begins_at <= now < validity.ends_at:
        return Finding(Verdict.FAIL, WHAT, says, SEE_AGENT)
    if not own.seconds_until_renewal(now, early_ratio=-LATE_RATIO):
        return Finding(Verdict.WARNING, WHAT, f"{says}, and should be renewed by now", SEE_AGENT)
    return Finding(Verdict.OK, WHAT, says)


def _good_until(validity: Validity, now: datetime) -> str:
    if now < validity.begins_at:
        return f"is good from {_moment(validity.begins_at)} on only"
    seconds = validity.remaining_seconds(now)
    if seconds <= 0:
        return f"ran out at {_moment(validity.ends_at)}"
    short = seconds < 2 * DAY_SECONDS
    left = f"{seconds / HOUR_SECONDS:.1f} hours" if short else f"{seconds / DAY_SECONDS:.1f} days"
    return f"is good until {_moment(validity.ends_at)} ({left})"


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


def _is_tls(url: str) -> bool:
    return url.startswith("https:")
