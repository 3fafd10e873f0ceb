"""The key of the current step on requests that leave: for httpx2, requests and whatever else has headers. Imports none of them.

The header is `Idempotency-Key` of the IETF draft (draft-ietf-httpapi-idempotency-key-header): a structured-field string in
double quotes. Providers that document a bare key take it with ``quoted=False``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from perdure import errors
from perdure.effects.effect import Effect, current

HEADER = "Idempotency-Key"
TOKEN_HEADER = "Perdure-Fencing-Token"  # noqa: S105  # a number, no secret

_KEYED = frozenset({"POST", "PATCH", "PUT", "DELETE"})
"""Methods that change something."""

Request = TypeVar("Request")
Client = TypeVar("Client")


def headers(effect: Effect | None = None, *, quoted: bool = True) -> dict[str, str]:
    """Return the headers of a step, by default the current one: its key, and the fencing token when there is one.

    Raises `errors.UsageError` outside of a step.
    """
    effect = effect or current()
    # RFC 8941 section 3.3.3: quotation marks and backslashes are escaped.
    escaped = effect.key.replace("\\", "\\\\").replace('"', '\\"')
    found = {HEADER: f'"{escaped}"' if quoted else effect.key}
    return found if effect.token is None else found | {TOKEN_HEADER: str(effect.token)}


def sign(request: Request, *, quoted: bool = True) -> Request:
    """Put the current step's headers on a request that changes something and carries no key yet; return the request.

    Takes any object with `method` and `headers`. It can be given as ``auth=`` to both requests and httpx2. A request outside of
    a step is refused, so that none leaves without a key by mistake. Raises `errors.UsageError`.
    """
    message: Any = request
    if str(message.method).upper() in _KEYED and HEADER not in message.headers:
        message.headers.update(headers(quoted=quoted))
    return request


def attach(client: Client, *, quoted: bool = True) -> Client:
    """Make a `httpx2.Client`, a `httpx2.AsyncClient` or a `requests.Session` sign each request, and return it.

    Raises `errors.UsageError` for anything else.
    """
    it: Any = client
    hooks = getattr(it, "event_hooks", None)
    if hooks is not None:
        hook = _ahook(quoted) if hasattr(it, "aclose") else lambda request: sign(request, quoted=quoted)
        # Assigned, not appended: the client gives out a copy.
        it.event_hooks = {**hooks, "request": [*hooks.get("request", []), hook]}
        return client
    if hasattr(it, "prepare_request"):
        prepare = it.prepare_request
        it.prepare_request = lambda request: sign(prepare(request), quoted=quoted)
        return client
    raise errors.UsageError(f"cannot sign the requests of {type(client).__name__}", hint="give effects.headers() to each request")


def _ahook(quoted: bool) -> Callable[[Any], Any]:
    async def hook(request: Any) -> None:
        sign(request, quoted=quoted)

    return hook
