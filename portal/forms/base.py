"""The base of all forms, and how a service's field errors find their way beside the fields."""

from collections.abc import Mapping

from flask_wtf import FlaskForm

from core.errors import VedetteError

# Errors whose message says more than the faults beside the fields.
CODES_ON_TOP = frozenset({"exceeds_every_appliance"})


class Form(FlaskForm):  # type: ignore[misc] # Flask-WTF ships no types
    """A form with a CSRF token whose submit attempt is a POST."""

    def show_errors(self, error: VedetteError, *, renamed: Mapping[str, str] | None = None) -> None:
        """Put a service's errors beside the fields that they name, the rest on top.

        Args:
            error: what the service raised.
            renamed: the service's name of a field to the form's, where they differ.
        """
        names = renamed or {}
        is_placed = False
        for name, faults in error.errors.items():
            field = self._fields.get(names.get(name, name.partition(".")[0]))
            if field is not None:
                # A field that was validated has a tuple or a list of errors: keep them.
                field.errors = [*field.errors, *faults]
                is_placed = True
        if not is_placed or error.code in CODES_ON_TOP:
            self.form_errors.append(error.message)
