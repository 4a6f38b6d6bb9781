"""The forms of the marketplace: sign-up, accounts, offers, and terms of contracts."""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from wtforms import (
    BooleanField,
    EmailField,
    IntegerField,
    SelectField,
    StringField,
    TextAreaField,
)
from wtforms.fields import SelectChoice
from wtforms.validators import DataRequired, InputRequired, Length, NumberRange, Optional

from core.errors import VedetteError
from core.money import parse_amount
from marketplace.models import Account, Offer
from marketplace.offers.calendar import Window, windows_of
from marketplace.offers.requests import OfferRequest
from marketplace.reputation.models import MAX_COMMENT_LENGTH
from marketplace.reputation.opinions import RatingRequest
from marketplace.terms import ComplianceFact, Credit, HourlyPrice, ServiceLevel, Terms
from portal.forms.accounts import NewAccountForm
from portal.forms.form import (
    CheckboxListField,
    DurationField,
    Form,
    LinesField,
    NotationField,
    PairsField,
)
from portal.presenters.market import DAY_NAMES, format_hourly_price, format_window, plain_amount
from portal.time_zone import current_zone_name

# More are covered by their labels.
MAX_LISTED_APPLIANCES = 500
_DAYS = {name.lower(): number for number, name in enumerate(DAY_NAMES)}
_HOURLY = re.compile(r"(?P<days>\S+)\s+(?P<start>\d{1,2})\s*-\s*(?P<end>\d{1,2})\s+(?P<price>\S+)")
_HOURS = re.compile(r"(\d{1,2})-(\d{1,2})")
STARS = [
    SelectChoice("", "Choose"),
    SelectChoice("5", "5 stars: very satisfied"),
    SelectChoice("4", "4 stars: satisfied"),
    SelectChoice("3", "3 stars: neither"),
    SelectChoice("2", "2 stars: unsatisfied"),
    SelectChoice("1", "1 star: very unsatisfied"),
]
_COUNT = [Optional(), NumberRange(0, 1_000_000)]
_ACCOUNT_FIELDS = (
    *("public_name", "description", "legal_name", "address", "country", "tax_number"),
    "billing_email",
)


def parse_hourly_price(line: str) -> HourlyPrice:
    """Return the price of `Mon-Fri 08-20 3.10`.

    Raises:
        ValueError: the line says something else; the text says what is expected.
    """
    match = _HOURLY.fullmatch(line.strip())
    if match is None:
        raise ValueError(f"{line.strip()[:60]!r}: write days, hours and price: Mon-Fri 08-20 3.10.")
    start, end = int(match["start"]), int(match["end"])
    if not 0 <= start < end <= 24:  # noqa: PLR2004 - hours of a day
        raise ValueError(f"{line.strip()[:60]!r}: hours are from 0 until 24, such as 08-20.")
    return HourlyPrice(
        days=parse_days(match["days"]),
        from_hour=start,
        until_hour=end,
        price=parse_amount(match["price"]),
    )


def parse_days(text: str) -> tuple[int, ...]:
    """Return the days of `Mon-Fri,Sun`: 0 for Monday.

    Raises:
        ValueError: a word is no day.
    """
    days: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        start, end = _day(first), _day(last if dash else first)
        days |= {(start + step) % 7 for step in range((end - start) % 7 + 1)}
    return tuple(sorted(days))


def _day(text: str) -> int:
    day = _DAYS.get(text.strip().lower()[:3])
    if day is None:
        raise ValueError(f"{text[:20]!r} is no day. Use {', '.join(DAY_NAMES)}.")
    return day


def parse_percent(text: str) -> Decimal:
    """Return a percentage.

    Raises:
        ValueError: it is no number from 0 to 100.
    """
    try:
        value = Decimal(text.strip().removesuffix("%").strip())
    except InvalidOperation as error:
        raise ValueError(f"{text[:20]!r} is no number.") from error
    if not value.is_finite() or not 0 <= value <= 100:  # noqa: PLR2004 - percent
        raise ValueError(f"{text[:20]!r} is out of range; enter 0 to 100.")
    return value


def _number(value: Decimal | float) -> str:
    return f"{Decimal(str(value)).normalize():f}" if value else ""


def _percent_text(value: Decimal) -> str:
    return f"{value.normalize():f}"


def parse_credit(line: str) -> Credit:
    """Return the credit of `99.5: 10`.

    Raises:
        ValueError: the line says something else.
    """
    below, colon, share = line.partition(":")
    if not colon:
        raise ValueError(f"{line.strip()[:40]!r}: write availability: credit, such as 99.5: 10.")
    return Credit(below_percent=float(parse_percent(below)), credit_percent=parse_percent(share))


def format_credit(credit: Credit) -> str:
    """Return a credit as `99.5: 10`."""
    below = Decimal(str(credit.below_percent)).normalize()
    return f"{below:f}: {credit.credit_percent.normalize():f}"


def parse_fact(line: str) -> ComplianceFact:
    """Return the fact of `iso27001 until 2027-03-31 https://example.com/certificate`.

    Raises:
        ValueError: it has more words.
    """
    words = line.split()
    name, until, address = words[0], "", ""
    rest = words[1:]
    if rest[:1] == ["until"] and len(rest) > 1:
        until, rest = rest[1], rest[2:]
    if rest and rest[0].startswith("https://"):
        address, rest = rest[0], rest[1:]
    if rest:
        raise ValueError(f"{line.strip()[:60]!r}: write NAME until 2027-03-31 https://...")
    return ComplianceFact(name=name, valid_until=until, evidence_url=address)


def format_fact(fact: ComplianceFact) -> str:
    """Return a fact as one line."""
    until = f"until {fact.valid_until}" if fact.valid_until else ""
    return " ".join(word for word in (fact.name, until, fact.evidence_url) if word)


def parse_window(line: str) -> Window:
    """Return the window of `closed Mon-Fri 08-20 from 2026-12-24 until 2026-12-27`.

    Raises:
        ValueError: a word is unknown; the text says what is expected.
    """
    words = line.split()
    values: dict[str, Any] = {}
    if words[0] in {"open", "closed"}:
        values["is_closed"] = words.pop(0) == "closed"
    while words:
        word = words.pop(0)
        if word in {"from", "until"} and words:
            values[f"{word}_date"] = words.pop(0)
        elif match := _HOURS.fullmatch(word):
            values["from_hour"], values["until_hour"] = int(match[1]), int(match[2])
        elif "days" not in values and word not in {"from", "until"}:
            values["days"] = parse_days(word)
        else:
            raise ValueError(
                f"{line.strip()[:60]!r}: write open Mon-Fri 08-20, or closed from 2026-12-24 until "
                "2026-12-27."
            )
    return Window(**values)


class SignUpForm(Form):
    """The email address of who signs up."""

    email = EmailField(
        "Email address",
        [DataRequired("Enter your email address.")],
        render_kw={"autocomplete": "username"},
    )


class ConfirmForm(NewAccountForm):
    """The tenant and the first user of a confirmed address."""

    organization = StringField(
        "Organization",
        [DataRequired("Enter the name of your organization.")],
        render_kw={"autocomplete": "organization"},
    )
    accepts_terms = BooleanField("I accept the terms of use")


class AccountForm(Form):
    """What others see of a tenant, and whom its invoices are made out to."""

    public_name = StringField("Public name", [DataRequired("Enter a name.")])
    description = TextAreaField("Description", default="")
    legal_name = StringField("Legal name", default="")
    address = TextAreaField("Address", default="")
    country = StringField("Country", default="")
    tax_number = StringField("Tax number", default="")
    billing_email = EmailField("Email for invoices", default="")

    def values(self) -> dict[str, Any]:
        """Return the values by attribute of the account."""
        texts = {name: (self[name].data or "").strip() for name in _ACCOUNT_FIELDS}
        return texts | {"country": texts["country"].upper()}

    @classmethod
    def of(cls, account: Account) -> "AccountForm":
        """Return the form of an account; a submitted one has what was entered."""
        return cls(data={name: getattr(account, name) for name in _ACCOUNT_FIELDS})


class ChargesForm(Form):
    """What the operator decides of an account; empty percentages are those of the portal."""

    fee_percent = NotationField("Fee in percent", parse=parse_percent, format=_percent_text)
    tax_percent = NotationField("Tax in percent", parse=parse_percent, format=_percent_text)
    is_prepaid = BooleanField("Prepaid: jobs start as long as the credit lasts")


class TermsForm(Form):
    """Terms of an offer, or of a version of a contract."""

    price = NotationField(
        "Price of a GPU for an hour",
        parse=parse_amount,
        format=plain_amount,
        validators=[InputRequired("Enter a price such as 2.45.")],
    )
    hourly_prices = LinesField(
        "Prices at certain hours",
        parse=parse_hourly_price,
        format=format_hourly_price,
    )
    time_zone = StringField("Time zone of hours", default=current_zone_name)
    discount_percent = NotationField("Discount in percent", parse=parse_percent, format=_number)
    allows_slices = BooleanField("Jobs may have parts of GPUs")
    region = StringField("Region", default="")
    min_seconds = DurationField("Shortest time charged", default=0.0)
    max_seconds = DurationField("Longest time limit of a job", default=0.0)
    max_gpus = IntegerField("GPUs at once", _COUNT)
    commitment_gpu_hours = IntegerField("Commitment in GPU-hours a month", _COUNT)
    term_days = IntegerField("Term in days", _COUNT)
    notice_days = IntegerField("Notice in days", _COUNT)
    cancellation_hours = IntegerField("Cancellation period in hours", _COUNT, default=24)
    availability_percent = NotationField(
        "Availability in percent of a month",
        parse=parse_percent,
        format=_number,
    )
    credits = LinesField("Credits", parse=parse_credit, format=format_credit)
    start_within_seconds = DurationField("Jobs start within", default=0.0)
    late_start_credit_percent = NotationField(
        "Credit for a late start in percent",
        parse=parse_percent,
        format=_number,
    )
    support_response_seconds = DurationField("Support answers within", default=0.0)
    facts = LinesField("Compliance facts", parse=parse_fact, format=format_fact)
    text = TextAreaField("Anything else", default="")

    def show_error(self, error: VedetteError, *, renamed: Mapping[str, str] | None = None) -> None:
        """Add a service's errors to the fields of terms that they name."""
        fields = {
            name: name.removeprefix("terms.").removeprefix("service_level.").partition(".")[0]
            for name in error.errors
        }
        super().show_error(error, renamed={**fields, **(renamed or {})})

    def terms(self, currency: str) -> Terms:
        """Return the terms that were entered."""
        return Terms(
            currency=currency,
            price=self.price.data,
            hourly_prices=tuple(self.hourly_prices.data),
            time_zone=self.time_zone.data or "UTC",
            allows_slices=self.allows_slices.data,
            region=(self.region.data or "").strip(),
            discount_percent=self.discount_percent.data or Decimal(0),
            text=self.text.data or "",
            service_level=ServiceLevel(
                availability_percent=float(self.availability_percent.data or 0),
                credits=tuple(self.credits.data),
                start_within_seconds=int(self.start_within_seconds.data or 0),
                late_start_credit_percent=self.late_start_credit_percent.data or Decimal(0),
                support_response_seconds=int(self.support_response_seconds.data or 0),
            ),
            facts=tuple(self.facts.data),
            **{
                name: int(self[name].data or 0)
                for name in (
                    *("min_seconds", "max_seconds", "max_gpus", "commitment_gpu_hours"),
                    *("term_days", "notice_days", "cancellation_hours"),
                )
            },
        )


class ProposalForm(TermsForm):
    """Terms that a side proposes to the other, with a note."""

    note = TextAreaField("Note", default="")


class RatingForm(Form):
    """How satisfied a customer was with a contract in a month."""

    month = SelectField("Month")
    stars = SelectField("Rating", choices=STARS, validators=[InputRequired("Choose a rating.")])
    comment = TextAreaField(
        "Comment",
        [Length(max=MAX_COMMENT_LENGTH, message=f"Use at most {MAX_COMMENT_LENGTH:,} characters.")],
        default="",
    )

    def list_months(self, months: Sequence[str]) -> None:
        """Set the months that can be rated."""
        self.month.choices = [SelectChoice(month, month) for month in months]

    def rating(self) -> RatingRequest:
        """Return the rating that was entered."""
        return RatingRequest(
            stars=int(self.stars.data), comment=self.comment.data or "", month=self.month.data
        )


class OfferForm(TermsForm):
    """An offer: what it is of, when, and its terms."""

    name = StringField("Name", [DataRequired("Enter a name.")])
    description = TextAreaField("Description", default="")
    appliance_ids = CheckboxListField("Appliances", default=list)
    labels = PairsField("Labels", default=dict)
    calendar = LinesField("Calendar", parse=parse_window, format=format_window)
    needs_approval = BooleanField("I approve each contract")

    def list_appliances(self, names: Mapping[str, str]) -> None:
        """Set the appliances that it can be of, by id: first, and of many alone, those selected."""
        selected = set(self.appliance_ids.data or ())
        rows = sorted(names.items(), key=lambda row: (row[0] not in selected, row[1]))
        if len(rows) > MAX_LISTED_APPLIANCES:
            rows = [row for row in rows if row[0] in selected]
        self.appliance_ids.choices = rows

    def request(self, currency: str) -> OfferRequest:
        """Return the offer that was entered."""
        return OfferRequest(
            name=self.name.data,
            description=self.description.data or "",
            appliance_ids=list(self.appliance_ids.data or ()),
            labels=self.labels.data or {},
            calendar=self.calendar.data or [],
            needs_approval=self.needs_approval.data,
            terms=self.terms(currency),
        )


def terms_data(terms: Terms) -> dict[str, Any]:
    """Return terms as data of a form."""
    names = (
        *("price", "time_zone", "discount_percent", "allows_slices", "region"),
        *("min_seconds", "max_seconds", "text", "cancellation_hours"),
    )
    level = terms.service_level
    return {
        **{name: getattr(terms, name) for name in names},
        **{
            name: getattr(terms, name) or None
            for name in ("max_gpus", "commitment_gpu_hours", "term_days", "notice_days")
        },
        "hourly_prices": list(terms.hourly_prices),
        "facts": list(terms.facts),
        "availability_percent": level.availability_percent,
        "credits": list(level.credits),
        "start_within_seconds": level.start_within_seconds,
        "late_start_credit_percent": level.late_start_credit_percent,
        "support_response_seconds": level.support_response_seconds,
    }


def offer_data(offer: Offer) -> dict[str, Any]:
    """Return an offer as data of a form."""
    names = ("name", "description", "appliance_ids", "labels", "needs_approval")
    values = {name: getattr(offer, name) for name in names}
    return values | {"calendar": windows_of(offer.calendar)} | terms_data(offer.decoded_terms)
