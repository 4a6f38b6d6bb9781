"""Device cookies: a browser that signed in to an account before is known by a signed cookie.

Its failed attempts are counted by themselves, so that nobody else's block it. The cookie gives no
access. It contains a token for each of the last few users of the browser: a random number of the
device and the time of the last sign-in, signed for one user and their present password. A new
password therefore invalidates the tokens in all browsers.

Source: https://owasp.org/www-community/Slow_Down_Online_Guessing_Attacks_with_Device_Cookies
"""

from datetime import UTC, datetime, timedelta

from flask import Response, after_this_request, request
from itsdangerous import BadSignature, URLSafeSerializer

from core.ids import new_secret
from core.settings import ServerSettings, secret_key
from portal.context import now, portal
from portal.middleware.security import is_https
from tenants.models import User

# Browsers retain cookies for 400 days at most.
LIFETIME = timedelta(days=400)
MAX_USERS = 5
_SEPARATOR = "~"
_MAX_COOKIE_LENGTH = 2048


def device_cookie_name(settings: ServerSettings) -> str:
    """Return the cookie's name; browsers bind the prefix `__Host-` to this host and HTTPS."""
    return "__Host-vedette-device" if is_https(settings) else "vedette-device"


def known_device(user: User | None) -> str | None:
    """Return this browser's device id, if the user has signed in with it before."""
    if user is None:
        return None
    return next((device for token in _tokens() if (device := _read(token, user))), None)


def remember_device(user: User) -> None:
    """Set the cookie in the response: the user has signed in with this browser."""
    tokens = _tokens()
    others = [stored for stored in tokens if _read(stored, user) is None]
    device = known_device(user) or new_secret("device")
    token = _signer(user).dumps([device, int(now().timestamp())])
    value = _SEPARATOR.join([token, *others][:MAX_USERS])

    @after_this_request
    def set_cookie(response: Response) -> Response:
        settings = portal().settings
        response.set_cookie(
            device_cookie_name(settings),
            value,
            max_age=LIFETIME,
            secure=is_https(settings),
            httponly=True,
            samesite="Lax",
        )
        return response


def _tokens() -> list[str]:
    stored = request.cookies.get(device_cookie_name(portal().settings), "")
    if not stored or len(stored) > _MAX_COOKIE_LENGTH:
        return []
    return stored.split(_SEPARATOR)[:MAX_USERS]


def _read(token: str, user: User) -> str | None:
    try:
        device, at = _signer(user).loads(token)
    except BadSignature:
        return None
    is_fresh = now() - datetime.fromtimestamp(at, UTC) < LIFETIME
    return str(device) if is_fresh else None


def _signer(user: User) -> URLSafeSerializer:
    salt = f"vedette device {user.id} {user.password_hash or ''}"
    return URLSafeSerializer(secret_key(portal().settings), salt=salt)
