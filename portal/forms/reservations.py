"""The form of a reservation."""

from wtforms import IntegerField, SelectField, StringField
from wtforms.validators import DataRequired, NumberRange, Optional

from jobqueue.jobs.queue_settings import MAX_COUNT
from jobqueue.reservations.checks import ReservationRequest
from portal.forms.form import DurationField, Form, LinesField
from portal.time_zone import current_zone_name

MAINTENANCE = "Nobody: keep it free for maintenance"


class ReservationForm(Form):
    """A reservation."""

    name = StringField("Name", [DataRequired("Enter a name.")])
    project_id = SelectField("Project")
    appliance_ids = LinesField("Appliances", parse=str.strip, format=str)
    gpus = IntegerField("GPUs of each", [Optional(), NumberRange(1, MAX_COUNT)])
    schedule = StringField("Begin", [DataRequired("Enter when it begins.")])
    time_zone = StringField("Time zone", default=current_zone_name)
    duration_seconds = DurationField("Duration", default=28800.0)

    def request(self) -> ReservationRequest:
        """Return the reservation."""
        return ReservationRequest(
            name=self.name.data,
            project_id=self.project_id.data or None,
            appliance_ids=self.appliance_ids.data,
            gpus=self.gpus.data,
            schedule=self.schedule.data,
            time_zone=self.time_zone.data,
            duration_seconds=int(self.duration_seconds.data),
        )
