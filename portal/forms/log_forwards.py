"""The form of a target of forwarded logs."""

from wtforms import BooleanField, PasswordField, SelectField, SelectMultipleField, StringField
from wtforms.fields import SelectChoice
from wtforms.validators import DataRequired

from logs.lines import Source
from logs.models import ForwardKind
from portal.forms.form import Form
from protocol.lines import LogLevel

_KINDS = [
    SelectChoice(ForwardKind.OTLP.value, "OpenTelemetry (OTLP over HTTP)"),
    SelectChoice(ForwardKind.LOKI.value, "Loki"),
    SelectChoice(ForwardKind.ELASTICSEARCH.value, "Elasticsearch or OpenSearch"),
    SelectChoice(ForwardKind.SYSLOG.value, "syslog (RFC 5424)"),
]
_SOURCES = [
    SelectChoice(Source.JOB.value, "Jobs"),
    SelectChoice(Source.APPLIANCE.value, "Appliances"),
]
_LEVELS = [
    SelectChoice(LogLevel.DEBUG.value, "All"),
    SelectChoice(LogLevel.INFO.value, "Info and above"),
    SelectChoice(LogLevel.WARNING.value, "Warning and above"),
    SelectChoice(LogLevel.ERROR.value, "Error and above"),
    SelectChoice(LogLevel.CRITICAL.value, "Critical"),
]


class ForwardForm(Form):
    """A new target, or a change of one."""

    name = StringField("Name", [DataRequired("Enter a name.")])
    kind = SelectField("Type", choices=_KINDS)
    url = StringField("Address")
    token = PasswordField("Token")
    sources = SelectMultipleField(
        "Logs of", choices=_SOURCES, default=[Source.JOB.value, Source.APPLIANCE.value]
    )
    minimum_level = SelectField("Levels", choices=_LEVELS)
    is_enabled = BooleanField("Forward", default=True)
