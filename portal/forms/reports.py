"""The form of a saved report."""

from collections.abc import Iterable, Mapping

from wtforms import HiddenField, SelectField, StringField
from wtforms.fields.choices import SelectChoice
from wtforms.validators import DataRequired

from dash_app.reports.builders import GROUPINGS, LABELS
from dash_app.reports.models import MAX_NAME_LENGTH, ReportPeriod, SavedReport
from dash_app.reports.report import FileFormat, ReportBy, ReportKind, lower
from dash_app.reports.saved import SavedReportRequest
from portal.forms.form import CheckboxListField, Form, NumberField
from portal.presenters.reports import DEFAULT_TARGET
from portal.time_zone import current_zone_name
from tenants.models import User

PERIODS: Mapping[ReportPeriod, str] = {
    ReportPeriod.YESTERDAY: "Yesterday",
    ReportPeriod.LAST_7_DAYS: "Last 7 days",
    ReportPeriod.LAST_30_DAYS: "Last 30 days",
    ReportPeriod.LAST_90_DAYS: "Last 90 days",
    ReportPeriod.LAST_WEEK: "Last week, Monday to Sunday",
    ReportPeriod.LAST_MONTH: "Last month",
}
RENAMED = {"price_per_kilowatt_hour": "price", "target_percent": "target"}


class SavedReportForm(Form):
    """A report to save; `kind` comes from the report that was open."""

    name = StringField(
        "Name", validators=[DataRequired("Enter a name.")], render_kw={"maxlength": MAX_NAME_LENGTH}
    )
    kind = HiddenField(default=ReportKind.GPU_TIME.value)
    by = SelectField("Group by", choices=[])
    period = SelectField(
        "Period",
        choices=[SelectChoice(period.value, label) for period, label in PERIODS.items()],
        default=ReportPeriod.LAST_30_DAYS.value,
    )
    appliances = StringField("Appliances", default="")
    price = NumberField("Price per kWh")
    target = NumberField("Target in %", default=DEFAULT_TARGET)
    schedule = StringField("Schedule", default="")
    time_zone = StringField("Time zone", default=current_zone_name)
    file_format = SelectField(
        "Format",
        choices=[
            SelectChoice(file_format.value, file_format.value.upper()) for file_format in FileFormat
        ],
        default=FileFormat.PDF.value,
    )
    recipients = CheckboxListField("Recipients")

    @property
    def report_kind(self) -> ReportKind:
        """The kind of report; the first for an unknown one."""
        kinds = {kind.value: kind for kind in ReportKind}
        return kinds.get(self.kind.data, ReportKind.GPU_TIME)

    def offer(self, members: Iterable[User]) -> None:
        """Set the groupings of the kind, and the recipients to choose from."""
        self.by.choices = [
            SelectChoice(grouping.value, lower(LABELS[grouping]))
            for grouping in GROUPINGS[self.report_kind]
            if grouping is not ReportBy.TENANT
        ]
        self.recipients.choices = [(member.email, member.email) for member in members]
        if not self.is_submitted() and self.by.data not in {
            choice.value for choice in self.by.choices
        }:
            self.by.data = self.by.choices[0].value

    def request(self) -> SavedReportRequest:
        """Return the report."""
        return SavedReportRequest(
            name=self.name.data,
            kind=self.report_kind,
            by=ReportBy(self.by.data),
            period=ReportPeriod(self.period.data),
            time_zone=self.time_zone.data.strip() or current_zone_name(),
            appliances=self.appliances.data,
            price_per_kilowatt_hour=self.price.data or 0.0,
            target_percent=DEFAULT_TARGET if self.target.data is None else self.target.data,
            schedule=self.schedule.data,
            file_format=FileFormat(self.file_format.data),
            recipients=self.recipients.data or [],
        )


def values_of(saved: SavedReport, emails: Iterable[str]) -> dict[str, object]:
    """Return the values of the form that changes a saved report."""
    names = ("name", "appliances", "schedule", "time_zone")
    return {
        **{name: getattr(saved, name) for name in names},
        **{name: getattr(saved, name).value for name in ("kind", "by", "period", "file_format")},
        "price": saved.price_per_kilowatt_hour or None,
        "target": saved.target_percent,
        "recipients": list(emails),
    }
