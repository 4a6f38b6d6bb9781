"""Emails with a picture of the alert's series."""

from datetime import UTC, timedelta
from io import BytesIO

import pytest
from PIL import Image

from alerting.charts.pictures import HEIGHT, MAX_BYTES, WIDTH, AlertPictures
from alerting.models import Alert
from alerting.notification.senders.notify import EmailSender
from alerting.rules.service import create_rule
from alerting.states import AlertState, Severity
from core.db import SessionFactory
from tests.cast import NOON, Cast, FrozenClock, scope_of
from tests.unit.alerting.helpers import HOT, PAYLOAD, heat
from tests.unit.alerting.servers import mail_server
from tests.unit.alerting.test_notify import message, to
from timeseries.store import Store

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def alert_id(sessions: SessionFactory, cast: Cast) -> str:
    with sessions.begin() as session:
        rule = create_rule(session, scope_of(cast.bob), HOT, now=NOON)
        alert = Alert(
            rule_id=rule.id,
            tenant_id=rule.tenant_id,
            group_key="0",
            tags={"appliance": "a1", "gpu": "0"},
            state=AlertState.FIRING,
            severity=Severity.CRITICAL,
            observed_at=NOON,
            updated_at=NOON,
        )
        session.add(alert)
        session.flush()
        return alert.id


def test_the_picture_has_the_line_and_the_levels(
    sessions: SessionFactory, store: Store, cast: Cast, clock: FrozenClock, alert_id: str
) -> None:
    for minutes in range(1, 40):
        at = clock.now - timedelta(minutes=minutes)
        heat(store, tenant=cast.acme.id, celsius=70.0 + minutes % 7, at=at)
    drawn = AlertPictures(sessions, store, clock).of({"alert_id": alert_id}, UTC)
    assert drawn is not None
    assert drawn.startswith(PNG)
    assert len(drawn) < MAX_BYTES
    image = Image.open(BytesIO(drawn)).convert("RGB")
    assert image.size == (2 * WIDTH, 2 * HEIGHT)
    counted_colors = image.getcolors() or []
    colors = {color for _, color in counted_colors if isinstance(color, tuple)}

    def is_near(wanted: tuple[int, int, int]) -> bool:
        return any(
            all(abs(shown - expected) < 12 for shown, expected in zip(color, wanted, strict=True))
            for color in colors
        )

    assert is_near((59, 130, 246))  # the line
    assert is_near((185, 121, 0))  # the warning level
    assert is_near((207, 47, 54))  # the critical level


@pytest.mark.parametrize("has_alert", [True, False])
def test_without_samples_or_alert_there_is_no_picture(
    sessions: SessionFactory, store: Store, clock: FrozenClock, alert_id: str, *, has_alert: bool
) -> None:
    payload = {"alert_id": alert_id if has_alert else "gone"}
    assert AlertPictures(sessions, store, clock).of(payload, UTC) is None


def test_a_picture_is_a_part_of_the_email_that_its_html_shows() -> None:
    with mail_server() as mailbox:
        url = f"smtp://127.0.0.1:{mailbox.port}"
        sender = EmailSender(url, "alerts@portal.example", picture_of=lambda _payload, _zone: PNG)
        sender.send(to("ops@acme.example"), message())
    (mail,) = mailbox.mails
    plain, related = mail.iter_parts()
    assert plain.get_content_type() == "text/plain"
    assert related.get_content_type() == "multipart/related"
    html, picture = related.iter_parts()
    assert picture.get_content_type() == "image/png"
    assert picture.get_content() == PNG
    ident = str(picture["Content-ID"]).strip("<>")
    assert f'src="cid:{ident}"' in html.get_content()
    assert f"now {PAYLOAD['value_text']}" in html.get_content()  # the text alternative
