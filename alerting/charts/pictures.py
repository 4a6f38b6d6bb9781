"""Pictures of alerts for emails: the series with its thresholds, as PNG."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta, tzinfo
from io import BytesIO
from typing import TYPE_CHECKING, Any

from alerting.charts.plots import Plot, Position, plot_series
from alerting.evaluation.rule_series import read_series, rule_of_group
from alerting.models import Alert
from alerting.states import Severity
from core.clock import Clock
from core.db import SessionFactory, transaction
from tenants.fleet.appliances import appliance_names
from timeseries.store import Store

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

log = logging.getLogger(__name__)

WIDTH, HEIGHT = 600, 220
MAX_BYTES = 200_000
# For screens with twice as many pixels; also smooths the lines.
_SCALE = 2
_FONT_PIXELS = 11
_SHOWN_BEFORE = timedelta(hours=1)
_INK, _GRID, _LINE, _BACKGROUND = "#5a6270", "#dfe2e7", "#3b82f6", "#ffffff"
_LEVELS = {Severity.INFO: "#1f6feb", Severity.WARNING: "#b97900", Severity.CRITICAL: "#cf2f36"}


@dataclass(frozen=True, slots=True)
class AlertPictures:
    """Draws the alerts that messages are about."""

    sessions: SessionFactory
    store: Store
    clock: Clock

    def of(self, payload: Mapping[str, Any], zone: tzinfo) -> bytes | None:
        """Return the picture of an alert's payload, or None if it can't be drawn.

        A message is more important than its picture: no failure is passed on.
        """
        try:
            return self._drawn(payload["alert_id"], zone)
        except Exception:
            log.warning("no picture of alert %s", payload.get("alert_id"), exc_info=True)
            return None

    def _drawn(self, alert_id: str, zone: tzinfo) -> bytes | None:
        with transaction(self.sessions) as session:
            alert = session.get(Alert, alert_id)
            if alert is None:
                return None
            rule, tenant_id = rule_of_group(alert.rule, alert.tags), alert.tenant_id
            names = appliance_names(session, (tenant_id,))
        end = self.clock()
        before = max(_SHOWN_BEFORE, timedelta(seconds=12 * rule.window_seconds))
        series = read_series(self.store, rule, tenants=(tenant_id,), start=end - before, end=end)
        if not series.lines:
            return None
        picture = draw(plot_series(series, size=(WIDTH, HEIGHT), names=names, zone=zone))
        return picture if len(picture) <= MAX_BYTES else None


def draw(plot: Plot) -> bytes:
    """Return a plot as PNG, in twice its size."""
    # Loaded when it is used: most processes never send an email.
    from PIL import Image, ImageDraw, ImageFont  # noqa: PLC0415

    image = Image.new("RGB", (plot.width * _SCALE, plot.height * _SCALE), _BACKGROUND)
    canvas = ImageDraw.Draw(image)
    canvas.font = ImageFont.load_default(_FONT_PIXELS * _SCALE)
    for y, label in plot.values:
        _line(canvas, [(plot.left, y), (plot.right, y)], _GRID)
        canvas.text(_scaled((plot.left - 6, y)), label, fill=_INK, anchor="rm")
    for x, label in plot.times:
        canvas.text(_scaled((x, plot.bottom + 6)), label, fill=_INK, anchor="mt")
    for line in plot.lines:
        for part in line.parts:
            _line(canvas, part, _LINE, width=2)
        if line.trend:
            _line(canvas, line.trend, _INK)
    for level in plot.levels:
        color = _LEVELS[level.severity]
        _line(canvas, [(plot.left, level.y), (plot.right, level.y)], color)
        label = f"{level.severity} {level.label}"
        above = plot.right, max(level.y - 2, plot.top)
        canvas.text(_scaled(above), label, fill=color, anchor="rb")
    out = BytesIO()
    image.quantize(64).save(out, format="PNG", optimize=True)
    return out.getvalue()


def _line(canvas: "ImageDraw", points: Sequence[Position], color: str, *, width: int = 1) -> None:
    scaled = [_scaled(point) for point in points]
    if len(scaled) == 1:
        canvas.circle(scaled[0], 2 * _SCALE, fill=color)
    else:
        canvas.line(scaled, fill=color, width=width * _SCALE, joint="curve")


def _scaled(position: Position) -> Position:
    x, y = position
    return x * _SCALE, y * _SCALE
