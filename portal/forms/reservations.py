"""The form of a reservation."""

from typing import Any

from wtforms import DecimalField, IntegerField, SelectField, StringField
from wtforms.validators import DataRequired, NumberRange, Optional

from jobqueue.jobs.settings import MAX_COUNT
from jobqueue.reservations.bookings import MAX_BOOKED
from jobqueue.reservations.checks import ReservationRequest
from portal.forms.form import DurationField, Form, LinesField, PairsField
from portal.time_zone import current_zone_name
from protocol.job_spec import MAX_PRICE

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
    max_gpu_hour_price = DecimalField(
        "Highest price of a GPU-hour", [Optional(), NumberRange(0, MAX_PRICE)], places=None
    )
    appliance_count = IntegerField(
        "Rented appliances", [Optional(), NumberRange(0, MAX_BOOKED)], default=0
    )
    gpu_model = StringField("GPU model")
    rental = PairsField("Requirements", default=dict)

    def without_rentals(self) -> None:
        """Leave out the fields about rented appliances, where the tenant has no contract."""
        del self.max_gpu_hour_price, self.appliance_count, self.gpu_model, self.rental

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
            **self._rented(),
        )

    def _rented(self) -> dict[str, Any]:
        if self.max_gpu_hour_price is None:
            return {}
        return {
            "max_gpu_hour_price": float(self.max_gpu_hour_price.data or 0),
            "appliance_count": self.appliance_count.data or 0,
            "gpu_model": self.gpu_model.data or "",
            "rental": self.rental.data,
        }
