"""Whom a profile of PyTorch's waits for; tests/watch/test_profile.py takes real ones."""

import pytest

from berg import BergError
from berg.machine import profile


@pytest.fixture
def desk(monkeypatch, tmp_path) -> profile.Desk:
    monkeypatch.setattr(profile, "FOLDER", tmp_path)
    return profile.Desk(None)


def test_a_process_that_asks_late_is_waited_for_once_more(desk, monkeypatch, tmp_path):
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 2:
            desk.files[7] = tmp_path / "trace_7.json"
            desk.files[7].write_text("{}")

    monkeypatch.setattr(profile.time, "sleep", sleep)
    monkeypatch.setattr(profile, "clients", lambda desk: [7])
    (found,) = profile.take_from_torch(desk, 1, tmp_path / "profiles", "box")
    assert found.name == "box.pt.trace.json.gz" and len(slept) == 2


@pytest.mark.parametrize(("living", "waits"), [([], 1), ([7], profile.TRIES)])
def test_who_ended_is_waited_for_no_longer(desk, monkeypatch, tmp_path, living, waits):
    slept = []
    monkeypatch.setattr(profile.time, "sleep", slept.append)
    monkeypatch.setattr(profile, "clients", lambda desk: living)
    with pytest.raises(BergError, match="the command ended before its profile was taken"):
        profile.take_from_torch(desk, 1, tmp_path / "profiles", "box")
    assert len(slept) == waits
