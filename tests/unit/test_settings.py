"""Configuration: who wins, and what a mistake says."""

from __future__ import annotations

import pytest

from perdure import errors
from perdure.base import settings


def test_the_strongest_origin_wins(tmp_path):
    (tmp_path / "perdure.toml").write_text('cluster = "local"\ntz = "Europe/Berlin"\n')
    user = tmp_path / "xdg" / "perdure"
    user.mkdir(parents=True)
    (user / "config.toml").write_text('cluster = "user"\nlevel = 0.95\n')
    values = settings.load(
        {"XDG_CONFIG_HOME": str(tmp_path / "xdg"), "PERDURE_TZ": "UTC", "PERDURE_THREADS": "1"},
        working_directory=tmp_path,
        flags={"threads": "2", "policy": None},
    )
    assert (values["cluster"].value, values["cluster"].origin) == ("local", str(tmp_path / "perdure.toml"))
    assert (values["tz"].value, values["tz"].origin) == ("UTC", "$PERDURE_TZ")
    assert (values["level"].value, values["level"].origin) == ("0.95", str(user / "config.toml"))
    assert (values["threads"].value, values["threads"].origin) == ("2", "--threads")
    assert (values["policy"].value, values["policy"].origin) == (None, "default")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("clutser = 1", "unknown key 'clutser'"),
        ("cluster = [1]", "must be text"),
        ("= 1", "not valid TOML"),
        ("cluster = true", "must be text"),
    ],
)
def test_mistakes_name_the_file(tmp_path, content, message):
    (tmp_path / "perdure.toml").write_text(content)
    with pytest.raises(errors.SettingError, match=message) as caught:
        settings.load({}, working_directory=tmp_path)
    assert str(tmp_path / "perdure.toml") in str(caught.value)


def test_the_nearest_key_is_named(tmp_path):
    with pytest.raises(errors.SettingError) as caught:
        settings.load({"PERDURE_CLUSTR": "a"}, working_directory=tmp_path)
    assert caught.value.hint == "did you mean PERDURE_CLUSTER?"


def test_an_explicit_file_must_exist(tmp_path):
    with pytest.raises(errors.SettingError, match="no such file"):
        settings.load({}, working_directory=tmp_path, explicit_file=tmp_path / "none.toml")
