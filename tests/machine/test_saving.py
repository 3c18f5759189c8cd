"""When the results of a job that runs are sent."""

from types import SimpleNamespace

import pytest

from berg.google.checksum import crc32c_of
from berg.google.mirror import Mirror
from berg.machine import saving


def test_what_writes_many_files_is_mirrored_less_often():
    """360 operations an hour for each file that changes all the time, 180 where 200 of them do."""
    assert [saving.pause_after(changed) for changed in (0, 1, 100, 300, 600, 10**6)] == [
        10,
        10,
        10,
        20,
        20,
        20,
    ]


class Bucket:
    """It takes everything, at once."""

    def upload_stream(self, name, file, size, *_):
        return SimpleNamespace(generation=1, crc32c=crc32c_of([file.read()]))


class Writer:
    """A job that writes new files all the time, seen by a clock that goes on while berg waits."""

    def __init__(self, mirror, files_per_second: int):
        self.mirror, self.rate = mirror, files_per_second
        self.now, self.oldest = 0.0, 0.0
        self.written: dict[str, float] = {}

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        for number in range(int(seconds * self.rate)):
            name = f"{len(self.written)}"
            (self.mirror.folder / name).write_text(name)
            self.written[name] = self.now + number / self.rate
        self.now += seconds
        missing = [at for name, at in self.written.items() if not self.mirror.manifest.get(name)]
        self.oldest = max([self.oldest, *(self.now - at for at in missing)])
        return False


@pytest.mark.parametrize("rate", [40])
def test_new_files_are_in_the_bucket_within_30_seconds(tmp_path, monkeypatch, rate):
    writer = Writer(Mirror(tmp_path, Bucket(), "berg_results/"), rate)
    mirrors = SimpleNamespace(
        done=SimpleNamespace(is_set=lambda: writer.now > 50, wait=lambda seconds: True),
        hurry=writer,
        results=writer.mirror,
    )
    states = SimpleNamespace(write_quietly=lambda **fields: None)
    attempt = SimpleNamespace(mirrors=mirrors, states=states)
    monkeypatch.setattr(saving, "time", writer)
    saving.keep_results(attempt)
    assert 0 < writer.oldest <= saving.RESULTS_INTERVAL + 1, "seconds"
    assert len(writer.written) >= 50 * rate


def test_a_pass_that_had_no_time_is_followed_at_once():
    """The next pass looks again at what is the newest."""
    waits, passes = [], []

    def sync(seconds, stop, only_new=False):
        passes.append(seconds)
        return 1000

    mirrors = SimpleNamespace(
        done=SimpleNamespace(is_set=lambda: len(passes) > 5, wait=lambda seconds: True),
        hurry=SimpleNamespace(wait=waits.append),
        results=SimpleNamespace(sync=sync, is_behind=True, failed={"late": "no time"}),
    )
    attempt = SimpleNamespace(mirrors=mirrors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving, "is_done_after", lambda attempt, pause, sent: waits.append(pause))
        saving.keep_results(attempt)
    assert waits == [saving.RESULTS_INTERVAL, 0, 0, 0, 0, 0]
    assert set(passes) == {saving.RESULTS_INTERVAL}


@pytest.mark.parametrize(
    ("looks", "ends"),
    [([True, True], True), ([True, False, True, False], False), ([False, True], False)],
)
def test_a_job_whose_bucket_is_gone_for_minutes_ends(monkeypatch, looks, ends):
    """What it would do from then on could not be kept, and would cost money."""
    left, stopped = list(looks), []
    monkeypatch.setattr(saving, "bucket_is_gone", lambda attempt: left.pop(0))
    mirrors = SimpleNamespace(done=SimpleNamespace(wait=lambda seconds: not left))
    bucket = SimpleNamespace(name="gone")
    saving.watch_bucket(SimpleNamespace(mirrors=mirrors, bucket=bucket, stop=stopped.append))
    assert len(stopped) == ends and not left
    assert not ends or "its bucket gone does not exist" in stopped[0].reason


@pytest.mark.parametrize(
    ("is_gone", "has_trouble", "seconds"),
    [(True, True, 30), (False, True, 600), (True, False, 600)],
)
def test_last_words_to_a_bucket_that_is_gone_are_not_tried_for_long(
    monkeypatch, is_gone, has_trouble, seconds
):
    """The machine, or the group that would make it anew, cost money for nine minutes and more."""
    monkeypatch.setattr(saving, "bucket_is_gone", lambda attempt: is_gone)
    last_pass = SimpleNamespace(is_alive=lambda: has_trouble)
    mirrors = SimpleNamespace(trouble="", last_log_pass=last_pass)
    attempt = SimpleNamespace(machine_goes=False, mirrors=mirrors)
    assert saving.seconds_for_last_words(attempt) == seconds
