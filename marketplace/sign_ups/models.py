"""The table of sign-ups that wait for a confirmation."""

from datetime import datetime

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from tenants.models.columns import SECRET_HASH_LENGTH
from tenants.models.users import EMAIL_LENGTH


class SignUp(Base):
    """An email address that asked to sign up; the link that was sent there confirms it."""

    __tablename__ = "sign_ups"

    id: Mapped[str] = id_column()
    email: Mapped[str] = mapped_column(String(EMAIL_LENGTH))
    secret_hash: Mapped[str] = mapped_column(String(SECRET_HASH_LENGTH), unique=True)
    created_at: Mapped[datetime] = mapped_column(index=True)
    expires_at: Mapped[datetime]
    confirmed_at: Mapped[datetime | None]
