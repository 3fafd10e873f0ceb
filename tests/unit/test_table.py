"""The connection that analyses run on: private room to spill, nothing left, limits explained."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from perdure import errors
from perdure.history import table


def _spill_of(connection) -> Path:
    (folder,) = connection.execute("SELECT current_setting('temp_directory')").fetchone()
    return Path(folder)


def test_what_spills_is_private_and_gone_afterwards(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    connection = table.connect(memory_limit="64MiB", threads=1)
    folder = _spill_of(connection)
    assert folder.stat().st_mode & 0o777 == 0o700
    connection.execute("CREATE TABLE big AS SELECT range AS i, md5(range::VARCHAR) AS text FROM range(3_000_000)")
    assert list(folder.iterdir()), "nothing spilled: the test shows nothing"
    assert list(tmp_path.iterdir()) == []
    connection.close()
    del connection
    gc.collect()
    assert not folder.exists()


@pytest.mark.parametrize("options", [{"memory_limit": "lots"}, {"memory_limit": "2GiB", "threads": -1}])
def test_a_limit_that_cannot_be_read_is_a_setting_error(options):
    with pytest.raises(errors.SettingError):
        table.connect(**options)


def test_too_little_memory_says_what_to_raise():
    connection = table.connect(memory_limit="8MiB", threads=1)
    with pytest.raises(errors.EnvironmentUnfit) as caught, table.room_errors():
        connection.execute("SELECT list(range), string_agg(range::VARCHAR, ',') FROM range(5_000_000)")
    assert "memory-limit" in caught.value.hint
