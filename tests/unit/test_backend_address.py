"""What a user may call a store, and that nothing secret of an address is ever shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure import errors
from perdure.store.backends.address import open_backend
from perdure.store.backends.local import LocalBackend
from perdure.store.backends.retry import RetryingBackend
from perdure.store.backends.s3 import Bucket, S3Backend


def bucket(url, environment=None, **options) -> Bucket:
    backend = open_backend(url, options=options, environment=environment or {})
    assert isinstance(backend, RetryingBackend)
    assert isinstance(backend.inner, S3Backend)
    assert backend.url == url
    return backend.inner._bucket


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/data/store", "/data/store"),
        ("file:///data/my%20store", "/data/my store"),
        ("file://localhost/data", "/data"),
        ("FILE:///data", "/data"),
        ("relative/store", "{here}/relative/store"),
        ("~/store", "{home}/store"),
        ("/data/odd:name?x=1", "/data/odd:name?x=1"),
    ],
)
def test_directories(given, path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    backend = open_backend(given)
    assert isinstance(backend, LocalBackend)
    assert backend.url == path.format(here=tmp_path, home="/home/me")


def test_buckets():
    assert bucket("s3://models") == Bucket(bucket="models", url="s3://models")
    found = bucket("s3://models/team/a?endpoint=http://h:9000&region=eu-west-1")
    assert (found.bucket, found.prefix, found.endpoint, found.region) == ("models", "team/a", "http://h:9000", "eu-west-1")
    assert bucket("s3://models/team/").prefix == "team"
    for endpoint in ("http://[::1]:9000", "https://s3.example.org/path", "https://10.0.0.1"):
        assert bucket(f"s3://models/x?endpoint={endpoint}").endpoint == endpoint


def test_the_nearest_word_wins():
    environment = {
        "AWS_ENDPOINT_URL": "https://general",
        "AWS_ENDPOINT_URL_S3": "https://special",
        "AWS_REGION": "r",
        "AWS_DEFAULT_REGION": "d",
    }
    found = bucket("s3://bbb", environment)
    assert (found.endpoint, found.region) == ("https://special", "r")
    found = bucket("s3://bbb?endpoint=https://address&region=a", environment)
    assert (found.endpoint, found.region) == ("https://address", "a")
    found = bucket("s3://bbb?endpoint=https://address&region=a", environment, endpoint="https://option", region="o")
    assert (found.endpoint, found.region) == ("https://option", "o")
    assert bucket("s3://bbb", {"AWS_ENDPOINT_URL": "", "AWS_DEFAULT_REGION": "d"}).region == "d"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("", "empty"),
        ("/a\0b", "zero byte"),
        ("file://host/data", "three slashes"),
        ("file://data", "three slashes"),
        ("ftp://user:hunter2@host/x", "ftp://"),
        ("https://hunter2/x", "https://"),
        ("s3://AKIA:hunter2@bucket/x", "no credentials"),
        ("s3://hunter2@bucket/x", "no credentials"),
        ("s3:/hunter2/x", "two slashes"),
        ("S3:hunter2", "two slashes"),
        ("file:/hunter2", "two slashes"),
        ("s3:///hunter2", "needs the name of a bucket"),
        ("s3://a_/x", "needs the name of a bucket"),
        ("s3://bucket/a//hunter2", "prefix"),
        ("s3://bucket/../hunter2", "prefix"),
        ("s3://bucket/hunter2%00", "prefix"),
        ("s3://bucket/" + "hunter2" * 40, "prefix"),
        ("s3://[hunter2/x", "cannot be read"),
        ("s3://bucket/x?secret=hunter2", "nothing else"),
        ("s3://bucket/x?hunter2", "nothing else"),
        ("s3://bucket/x?endpoint=https://me:hunter2@host", "without credentials"),
        ("s3://bucket/x?endpoint=hunter2", "https://HOST:PORT"),
        ("s3://bucket/x?endpoint=http://[hunter2", "https://HOST:PORT"),
        ("s3://bucket/x?endpoint=http://hunter2 host", "https://HOST:PORT"),
        ("s3://bucket/x?endpoint=http://", "https://HOST:PORT"),
        ("s3://bucket/x?endpoint=https://host/?key=hunter2", "https://HOST:PORT"),
    ],
)
def test_what_is_refused_is_not_repeated(given, says):
    with pytest.raises(errors.UsageError, match=says) as caught:
        open_backend(given, environment={})
    assert "hunter2" not in str(caught.value) + caught.value.hint
    assert caught.value.hint


def test_nothing_of_obstore_is_loaded_before_the_first_call():
    script = (
        "import sys; from perdure.store.backends.address import open_backend; open_backend('s3://bbb/x'); print('obstore' in sys.modules)"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "False\n"
