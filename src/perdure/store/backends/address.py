"""From what a user calls a store (`--store`) to a backend. Called by the command line, the supervisor and its saver.

A path or ``file://`` is a directory; ``s3://BUCKET/PREFIX`` is a bucket, its server and region from ``?endpoint=…&region=…`` or from
AWS_ENDPOINT_URL and AWS_REGION. Credentials come from AWS_ variables alone: an address is shown, logged and kept, a secret never is.
"""

from __future__ import annotations

import importlib.util
import os
import random
import re
import time
from collections.abc import Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

from perdure import errors
from perdure.base import files, text
from perdure.store.backends import contract
from perdure.store.backends.contract import Backend
from perdure.store.backends.local import LocalBackend
from perdure.store.backends.retry import Patience, RetryingBackend
from perdure.store.backends.s3 import Bucket, S3Backend

_FORMS = "a store is a directory (/PATH or file:///PATH) or a bucket (s3://BUCKET/PREFIX)"
_SLIP = re.compile(r"(?:s3|file):", re.IGNORECASE)
"""What begins so was hardly meant as a directory, which would be made."""
_OPTIONS = frozenset({"endpoint", "region"})
_ENDPOINT = re.compile(r"https?://(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::\d{1,5})?(?:/[A-Za-z0-9._~/-]*)?")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")


def located(url: str) -> str:
    """Return `url`, a directory as its absolute path. Raises `errors.UsageError` for one that is not UTF-8, or was meant as an address."""
    if "://" in url:
        return url
    _refuse_slip(url)
    return files.kept_path(url)


def _refuse_slip(url: str) -> None:
    if _SLIP.match(url):
        raise errors.UsageError("an address has two slashes behind its colon", hint=f"{_FORMS}; a directory of that name is ./NAME")


def open_backend(url: str, *, options: Mapping[str, str] | None = None, environment: Mapping[str, str] = os.environ) -> Backend:
    """Return the backend for `url`, without looking whether anything is there.

    `options` (``endpoint``, ``region``) win over those in the address, and they over `environment`. Raises `errors.UsageError`, which
    shows no more of the address than its scheme.
    """
    if text.visible(url) != url:
        raise errors.UsageError("the store's address is not UTF-8", hint=_FORMS)
    scheme, separator, rest = url.partition("://")
    if not separator:
        _refuse_slip(url)
        return _directory(url)
    match scheme.lower():
        case "file":
            host, slash, path = rest.partition("/")
            if host not in ("", "localhost") or not slash:
                raise errors.UsageError("a file:// address needs three slashes: file:///PATH", hint=_FORMS)
            return _directory("/" + unquote(path))
        case "s3":
            place = _bucket(url, dict(options or {}), environment)
            if importlib.util.find_spec("obstore") is None:
                raise errors.MissingExtra("a store in a bucket needs obstore, which is not installed", hint="pip install 'perdure[s3]'")
            return RetryingBackend(S3Backend(place), Patience(), clock=time.monotonic, sleep=time.sleep, random=random.random)
    raise errors.UsageError(f"{scheme}:// is no place for a store", hint=_FORMS)


def _directory(path: str) -> Backend:
    if not path or "\0" in path:
        raise errors.UsageError("the store's path is empty or holds a zero byte", hint=_FORMS)
    return LocalBackend(os.path.expanduser(path))


def _bucket(url: str, options: dict[str, str], environment: Mapping[str, str]) -> Bucket:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise errors.UsageError("this s3:// address cannot be read", hint=_FORMS) from error
    if "@" in parts.netloc:
        raise errors.UsageError(
            "an s3:// address holds no credentials", hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"
        )
    if not _BUCKET.fullmatch(parts.netloc):
        raise errors.UsageError("an s3:// address needs the name of a bucket behind its two slashes", hint=_FORMS)
    prefix = unquote(parts.path).strip("/")
    if prefix and (not contract.KEY.fullmatch(prefix) or len(prefix) > 200):
        raise errors.UsageError("the prefix of an s3:// address may hold letters, digits and ._@- between single slashes", hint=_FORMS)
    chosen = dict(parse_qsl(parts.query, keep_blank_values=True)) | options
    if not chosen.keys() <= _OPTIONS:
        # What it is is not shown: people put credentials there.
        raise errors.UsageError("an s3:// address takes ?endpoint=URL and &region=REGION, and nothing else", hint=_FORMS)
    endpoint = chosen.get("endpoint") or _first(environment, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    if endpoint is not None:
        _check_endpoint(endpoint)
    region = chosen.get("region") or _first(environment, "AWS_REGION", "AWS_DEFAULT_REGION")
    return Bucket(bucket=parts.netloc, prefix=prefix, endpoint=endpoint, region=region, url=url)


def _check_endpoint(endpoint: str) -> None:
    if not _ENDPOINT.fullmatch(endpoint):
        raise errors.UsageError(
            "the endpoint of an object store is https://HOST:PORT, without credentials", hint="?endpoint=https://HOST or AWS_ENDPOINT_URL"
        )


def _first(environment: Mapping[str, str], *names: str) -> str | None:
    return next((environment[name] for name in names if environment.get(name)), None)
