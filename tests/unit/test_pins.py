"""Pins: what they say."""

from stores import Still, new_repository, save

from perdure.model.checkpoint import CheckpointId
from perdure.store import documents, layout, pins

ID = CheckpointId("w", 1, 1)


def test_a_note_that_is_no_text_is_kept_as_it_is_shown(tmp_path):
    repository = new_repository(tmp_path)
    save(repository, str(ID), {"a": b"content"}, folder=tmp_path)
    pins.pin(repository, ID, note="caf\udce9", surroundings=Still())
    assert pins.pinned(repository, "w") == {ID}
    assert documents.read(repository, layout.pin_key(ID), pins.Pin).note == "caf\\xe9"
