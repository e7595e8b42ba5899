"""The access control of the console, and the security headers of every answer."""

import base64
import binascii
import hmac
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kworker.core.address import Address

PROBES = ("/livez", "/readyz", "/startupz")
_METHODS = ("GET", "HEAD")
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        " img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class AccessGuard:
    """Refuses requests that are not allowed, as ASGI middleware around `app`.

    If no token is configured, a request must name a loopback host: else a page of any website, open
    in a browser on this host, could read the console by a host name that resolves to 127.0.0.1. If
    a token is configured, a request must present it, as `Authorization: Bearer TOKEN`, or as the
    password of any user in a browser. The probes answer requests without the token, too, but then
    give no reasons. `scope["state"]["trusted"]` is True if the answer may give reasons.
    """

    def __init__(self, app: ASGIApp, listen: Address, token: str) -> None:
        self._app = app
        self._loopback = listen.ip.is_loopback
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, answer)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        if _has_body(headers):
            # The server would go on reading it after the answer.
            close = {"connection": "close"}
            return PlainTextResponse("the console takes requests without a body\n", 413, close)
        if scope["method"] not in _METHODS:
            allow = {"allow": ", ".join(_METHODS)}
            return PlainTextResponse("the console is read-only\n", 405, allow)
        if not self._token and not self._loopback:
            return PlainTextResponse("console.token is missing\n", 403)
        if not self._token:
            scope["state"] = {"trusted": True}
            if _is_loopback(headers.get("host", "")):
                return None
            text = "the console is asked for by another host's name; use localhost or 127.0.0.1\n"
            return PlainTextResponse(text, 421)
        trusted = hmac.compare_digest(_password(headers), self._token.encode())
        scope["state"] = {"trusted": trusted}
        if trusted or scope["path"] in PROBES:
            return None
        ask = {"www-authenticate": 'Basic realm="kworker", charset="UTF-8"'}
        return PlainTextResponse("the console needs its token (console.token)\n", 401, ask)


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _is_loopback(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


def _password(headers: Headers) -> bytes:
    """Returns the token that a request presents, b"" if it presents none."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("latin-1")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return b""
