"""What an object store's answers mean to a person and to a caller that may try again. Called by `s3`.

obstore gives one text that holds the HTTP status and the server's XML. Its status and code are taken out; the rest is never shown, for it
may hold what was signed, and with which key.
"""

from __future__ import annotations

import re

from perdure import errors
from perdure.store.backends import names

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>")
_FULL = frozenset({"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "StorageFull"})
_FOR_NOW = frozenset({408, 409, 425, 429})
"""Time-out, conflict with another request, too early, too many: the ones below 500 that pass by themselves."""
_CODES_FOR_NOW = frozenset({"RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch"})
"""What is answered with 400 though nothing is wrong with the request: its body stalled, was cut short or was changed on its way."""
_HINTS: dict[str, str] = {
    "RequestTimeTooSkewed": "set this machine's clock",
    "SignatureDoesNotMatch": "AWS_SECRET_ACCESS_KEY is not the one that belongs to AWS_ACCESS_KEY_ID",
    "InvalidAccessKeyId": "the server does not know AWS_ACCESS_KEY_ID: is AWS_ENDPOINT_URL the right server?",
    "ExpiredToken": "get new credentials and set AWS_SESSION_TOKEN with them",
    "PermanentRedirect": "set the bucket's region: AWS_REGION or ?region=REGION",
    "AuthorizationHeaderMalformed": "set the bucket's region: AWS_REGION or ?region=REGION",
    "InvalidBucketName": "the server does not take this name for a bucket",
    "InvalidObjectState": "it was archived, perhaps by a lifecycle rule: restore it in the bucket, and take the store out of that rule",
}
_REFUSED = "the credentials need s3:GetObject, PutObject, DeleteObject and ListBucket on this bucket"
_ROLE = re.compile(r"/latest/(?:api/token|meta-data/iam)")
"""Where a cloud's machine is asked for the credentials of its role: what obstore does when no variable gives any."""

_PATH = re.compile(r'\bpath: "((?:[^"\\]|\\.){1,1024})"')
"""The key that cannot be listed, control characters escaped."""

_SILENCE = (
    ("TimedOut", "no answer in time"),
    ("kind: Timeout", "no answer in time"),
    ("dns error", "its name is not known to the network"),
    ("ConnectionRefused", "nothing listens there"),
    ("InvalidCertificate", "its certificate is not trusted here"),
    ("InvalidContentType", "it does not speak TLS there"),
    ("IncompleteMessage", "it closed the connection"),
    ("ConnectionReset", "it closed the connection"),
)
"""What obstore's text holds when no answer came, and what that means."""


class BehindTheEnd(Exception):  # an answer, not an error: nothing lies there
    """The range that was asked for begins behind the object's end."""


def explain(error: Exception, url: str, key: str) -> Exception:
    """Return what to raise for `error`, which obstore raised for the object `key` (may be a prefix, or empty) of the place `url`."""
    text = str(error)
    if _ROLE.search(text):
        return errors.StoreError(
            f"{url}: no credentials: AWS_ACCESS_KEY_ID is not set, and this machine has no role that gives some",
            hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment",
        )
    if type(error).__name__ == "InvalidPathError":
        return _unlistable(url, _PATH.search(text))
    status_match, code_match = _STATUS.search(text), _CODE.search(text)
    status = int(status_match[1]) if status_match else 0
    code = code_match[1] if code_match else ""
    if status == 416:
        return BehindTheEnd()
    if type(error).__name__ == "AlreadyExistsError":
        return names.exists(key)
    if isinstance(error, FileNotFoundError) and code != "NoSuchBucket":
        return names.missing(key)
    what = f"{url}: {_words(status, code, text)}" + (f" ({key})" if key else "")
    return _refusal(what, url, status, code)


def _refusal(what: str, url: str, status: int, code: str) -> errors.StoreError:
    """Return the error for an answer that says no; status 0: there was no answer."""
    if code == "NoSuchBucket":
        return no_bucket(url)
    if status == 507 or code in _FULL:
        return errors.StoreFull(what, hint="free some space, let `perdure store gc` do it, or choose another store with --store")
    if status == 501:
        return no_conditions(url, "it answered 501, not implemented")
    if 300 <= status < 500 and status not in _FOR_NOW and code not in _CODES_FOR_NOW:
        return errors.StoreError(what, hint=_HINTS.get(code, _REFUSED if status in (401, 403) else "see the server's own log"))
    return errors.StoreUnavailable(what, hint="see whether the server runs and this machine reaches it; it was tried several times")


def _unlistable(url: str, path: re.Match[str] | None) -> errors.StoreError:
    """Return the error for a key that obstore refuses to list, and with it every other: one with an empty part, or control characters."""
    shown = f": {path[1]}" if path else ""
    return errors.StoreError(
        f"{url}: an object that Perdure did not write is in the way of every listing{shown}",
        hint="delete it or give it another name; or give the store a prefix of its own: s3://BUCKET/PREFIX",
    )


def _words(status: int, code: str, text: str) -> str:
    if status:
        return f"the server answered {status}" + (f" {code}" if code else "")
    return next((words for mark, words in _SILENCE if mark in text), "the server does not answer")


def no_bucket(url: str) -> errors.StoreMissing:
    """Return the error for a bucket that is not there."""
    return errors.StoreMissing(f"{url}: there is no such bucket", hint="make it with the tool of your object store; Perdure makes none")


def no_conditions(url: str, seen: str) -> errors.StoreError:
    """Return the error for a server on which two writers could overwrite each other."""
    return errors.StoreError(
        f"{url}: this server cannot be trusted to write an object only if it is absent: {seen}",
        hint="use one that honours If-None-Match: * (Amazon S3 and Ceph do), or a directory on a shared file system",
    )
