"""Who signed the portal's own certificate, for agents that join and have the SHA-256 of it."""

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from access.errors import error_response
from core.settings import ServerSettings
from core.told_authority import told_authority

PEM_TYPE = "application/pem-certificate-chain"


class AuthorityEndpoint:
    """Tells the authority to everybody: it is no secret, and whoever asks compares it."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings

    async def show(self, request: Request) -> Response:
        """Answer with the authority's certificate (PEM)."""
        told = told_authority(self._settings)
        if told is not None:
            return PlainTextResponse(told.pem, media_type=PEM_TYPE)
        return error_response(
            request,
            code="not_found",
            status=404,
            message="This portal's certificate is of an authority that systems know, or it has "
            "none. Enrol without --ca-sha256.",
        )
