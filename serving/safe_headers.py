"""Headers of answers that no page shows: those of the agent API, and refusals of connections."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

# A browser that is led here may do nothing with a response.
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)
HEADER_LINES = b"".join(name + b": " + value + b"\r\n" for name, value in HEADERS)
_STARTS = frozenset({"http.response.start", "websocket.http.response.start"})
_FORBIDDEN = 403


def with_safe_headers(app: ASGIApp) -> ASGIApp:
    """Return an application whose answers have the headers, unless it sets them itself."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        is_accepted = scope["type"] != "websocket"

        async def send_safely(message: Message) -> None:
            nonlocal is_accepted
            kind = message["type"]
            if kind in _STARTS:
                headers = message.get("headers", ())
                names = {name.lower() for name, _ in headers}
                extra = (pair for pair in HEADERS if pair[0] not in names)
                message = {**message, "headers": [*headers, *extra]}
            elif kind == "websocket.accept":
                is_accepted = True
            elif kind == "websocket.close" and not is_accepted:
                # uvicorn's own refusal has no headers.
                reason = str(message.get("reason") or "").encode()
                start = {"type": "websocket.http.response.start", "status": _FORBIDDEN}
                await send_safely({**start, "headers": [(b"content-type", b"text/plain")]})
                await send({"type": "websocket.http.response.body", "body": reason})
                return
            await send(message)

        await app(scope, receive, send_safely)

    return wrapped
