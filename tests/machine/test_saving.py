"""When the results of a job that runs are sent."""

import math
import threading
from types import SimpleNamespace

import pytest

from berg import BergError
from berg.google import api, views
from berg.google.mirror import Mirror
from berg.google.storage import crc32c_of
from berg.job import State, Summary
from berg.machine import saving
from berg.machine.attempt import Damaged, NoJob
from berg.machine.outcome import Uploads


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


@pytest.mark.slow
@pytest.mark.parametrize("rate", [40])
def test_new_files_are_in_the_bucket_within_30_seconds(tmp_path, monkeypatch, rate):
    writer = Writer(Mirror(tmp_path, Bucket(), "berg_results/"), rate)
    mirrors = SimpleNamespace(
        done=SimpleNamespace(is_set=lambda: writer.now > 50, wait=lambda seconds: True),
        hurry=writer,
        turn=threading.Lock(),
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
        turn=threading.Lock(),
        results=SimpleNamespace(sync=sync, is_behind=True, failed={"late": "no"}, underway={}),
    )
    attempt = SimpleNamespace(mirrors=mirrors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving, "is_done_after", lambda attempt, pause, sent: waits.append(pause))
        saving.keep_results(attempt)
    assert waits == [saving.RESULTS_INTERVAL, 0, 0, 0, 0, 0]
    assert set(passes) == {saving.RESULTS_INTERVAL}


@pytest.mark.parametrize("what", ["failed", "underway"])
def test_what_failed_is_tried_again_soon_and_then_less_and_less(monkeypatch, what):
    """The state hears of a pass that left nothing, and of no other."""
    waits, told = [], []
    results = SimpleNamespace(is_behind=False, failed={}, underway={}, synced_until="now")

    def sync(seconds, stop, only_new=False):
        setattr(results, what, {"late": "503"} if len(waits) < 7 else {})
        return 1

    mirrors = SimpleNamespace(
        done=SimpleNamespace(is_set=lambda: len(waits) > 8),
        turn=threading.Lock(),
        results=results,
    )
    results.sync = sync
    states = SimpleNamespace(write_quietly=lambda **fields: told.append(len(waits)))
    monkeypatch.setattr(saving, "is_done_after", lambda attempt, pause, sent: waits.append(pause))
    saving.keep_results(SimpleNamespace(mirrors=mirrors, states=states))
    assert waits == [10, 1, 2, 4, 8, 10, 10, 10, 10] and told == [7]


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
    assert not ends or "its bucket gone has not existed" in stopped[0].reason


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


class Clock:
    """A clock that goes on while something is waited for."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Sending:
    """A thread that sends: it ends at a moment of the clock, never at infinity."""

    def __init__(self, clock: Clock, ends: float):
        self.clock, self.ends, self.waits = clock, clock.now + ends, []

    def is_alive(self) -> bool:
        return self.clock.now < self.ends

    def join(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.clock.now += max(0.0, seconds)


class Written:
    """What would be written into the state of a job."""

    def __init__(self, state: State):
        self.state, self.writes = state, []

    def write(self, soon: bool = False, **fields) -> None:
        self.writes.append(fields)
        for name, value in fields.items():
            setattr(self.state, name, value)


def uploading(clock: Clock, **job_fields) -> SimpleNamespace:
    """An attempt whose last results are sent: ten files of 100 bytes are left, and stay so."""
    state = State("UPLOADING")
    states = Written(state)
    states.began = clock.now
    results = SimpleNamespace(left=lambda: [(f"f{n}", 100) for n in range(10)])
    job_fields = {"on": "", "max_run_seconds": 0, "upload_timeout": 3600, **job_fields}
    return SimpleNamespace(
        machine_goes=False,
        counted_before=0,
        stopping=SimpleNamespace(deadline=clock.now + 30),
        job=SimpleNamespace(**job_fields),
        state=state,
        states=states,
        member=SimpleNamespace(summary={}),
        mirrors=SimpleNamespace(results=results, trouble=""),
    )


@pytest.mark.parametrize(
    ("goes", "limit", "counted_before", "left"),
    [
        (True, 0, 0, 30 - saving.LAST_STATE_SECONDS),
        (True, 10**6, 0, 30 - saving.LAST_STATE_SECONDS),
        (False, 0, 0, math.inf),
        (False, 7200, 0, 7200 - 75),
        (False, 7200, 1200, 6000 - 75),
        (False, 80, 0, 70),
    ],
)
def test_the_last_moment_leaves_time_for_the_state(goes, limit, counted_before, left):
    clock = Clock()
    attempt = uploading(clock, max_run_seconds=limit)
    attempt.machine_goes, attempt.counted_before = goes, counted_before
    assert saving.last_moment(attempt) == clock.now + left


@pytest.mark.parametrize(
    ("patience", "limit", "gone", "trouble", "ends_after"),
    [
        (600, 0, False, "", 600),  # nothing moves
        (600, 0, False, "503", 600),  # a bucket that is there may take it yet
        (600, 0, True, "404", saving.BUCKET_TIMEOUT),
        (60, 0, True, "404", 60),
        (600, 400, False, "", 350),  # --max-hours
    ],
)
def test_an_upload_that_stands_still_is_given_up(
    monkeypatch, patience, limit, gone, trouble, ends_after
):
    clock = Clock()
    monkeypatch.setattr(saving, "time", clock)
    monkeypatch.setattr(saving, "bucket_is_gone", lambda attempt: gone)
    attempt = uploading(clock, upload_timeout=patience, max_run_seconds=limit)
    attempt.mirrors.trouble = trouble
    sending = Sending(clock, math.inf)
    saving.watch_upload(attempt, sending, "")
    assert ends_after <= clock.now - 1000 <= ends_after + 2 * saving.UPLOAD_LOOK
    assert all(0 < seconds <= saving.UPLOAD_LOOK for seconds in sending.waits)


def test_an_upload_that_goes_on_is_waited_for_and_its_progress_is_written(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(saving, "time", clock)
    attempt = uploading(clock, upload_timeout=60)
    left = [(f"f{n}", 100) for n in range(50)]
    attempt.mirrors.results.left = lambda: left[int((clock.now - 1000) // 30) :]
    sending = Sending(clock, 1500)
    saving.watch_upload(attempt, sending, "stopped by ann")
    assert not sending.is_alive(), "a file each half minute is progress"
    writes = attempt.states.writes
    assert writes[0] == {"left_files": 50, "left_bytes": 5000, "reason": "stopped by ann"}
    assert writes[-1]["left_files"] == 1 and len(writes) == 50, "each change is written once"
    assert attempt.member.summary["left"] == "1 100"


def test_what_keeps_an_upload_stands_in_the_state():
    attempt = uploading(Clock())
    attempt.mirrors.trouble = "503 Unavailable"
    saving.report_progress(attempt, [("a", 7)], "")
    assert attempt.state.reason == "503 Unavailable"
    saving.report_progress(attempt, [], "killed by ann")
    assert attempt.state.reason == "killed by ann; 503 Unavailable"
    assert (attempt.state.left_files, attempt.state.left_bytes) == (0, 0)


def test_what_all_other_machines_have_left_is_summed_and_written_once():
    attempt = uploading(Clock())
    saving.note_left(attempt, ["3 100", "4 20"])
    saving.note_left(attempt, ["3 100", "4 20"])
    assert attempt.states.writes == [{"left_files": 7, "left_bytes": 120}]


class LogMirror(SimpleNamespace):
    """A log whose last pass leaves these files."""

    def __init__(self, left, pause=0.0):
        super().__init__(finish=lambda console, seconds: left, seconds_to_next_write=lambda: pause)


@pytest.mark.parametrize(
    ("goes", "log_lasts", "is_whole", "waits"),
    [
        (False, 5, True, saving.LOG_TIMEOUT),
        (False, 10_000, False, saving.LOG_TIMEOUT),
        (True, 5, True, 30 - saving.LAST_STATE_SECONDS),
        (True, 10_000, False, 30 - saving.LAST_STATE_SECONDS),
    ],
)
def test_the_end_of_the_log_has_its_time_and_no_more(monkeypatch, goes, log_lasts, is_whole, waits):
    clock = Clock()
    monkeypatch.setattr(saving, "time", clock)
    attempt = uploading(clock)
    attempt.machine_goes = goes
    attempt.mirrors.last_log_pass = Sending(clock, log_lasts)
    attempt.mirrors.log = LogMirror({})
    assert saving.send_log(attempt) is is_whole
    assert attempt.mirrors.last_log_pass.waits == [waits]


def test_the_end_of_the_log_that_the_bucket_does_not_take_is_not_whole():
    clock = Clock()
    attempt = uploading(clock)
    attempt.mirrors.last_log_pass = Sending(clock, 0)
    attempt.mirrors.log = LogMirror({"log": "no room"})
    assert saving.send_log(attempt) is False


@pytest.mark.parametrize(("goes", "waited"), [(False, 0.8), (True, 0.0)])
def test_the_end_of_a_log_that_was_just_written_waits_unless_the_machine_goes(
    monkeypatch, goes, waited
):
    clock = Clock()
    monkeypatch.setattr(saving, "time", clock)
    attempt = uploading(clock)
    attempt.machine_goes = goes
    attempt.mirrors.last_log_pass = saving.start_thread(lambda: None)
    attempt.mirrors.log = LogMirror({}, pause=0.8)
    assert saving.send_log(attempt) is True
    assert clock.now - 1000.0 == pytest.approx(waited)


def test_a_bucket_is_gone_only_if_google_says_so():
    answers = {
        "gone": api.NotFound("no bucket"),
        "down": api.GoogleError("later", 503),
    }

    def ask(prefix, fields):
        if answer := answers.get(bucket.name):
            raise answer
        return iter([])

    bucket = SimpleNamespace(name="", list=ask)
    found = {}
    for bucket.name in ("gone", "down", "there"):
        found[bucket.name] = saving.bucket_is_gone(SimpleNamespace(bucket=bucket, name="a"))
    assert found == {"gone": True, "down": False, "there": False}


def test_a_job_whose_description_is_missing_does_not_begin(bucket):
    attempt = SimpleNamespace(
        bucket=bucket, name="a", sweep="", machine=SimpleNamespace(job_sha256="0" * 64)
    )
    with pytest.raises(BergError, match="a_metadata.json is missing"):
        saving.read_job(attempt)


@pytest.mark.parametrize(("kind", "looks"), [("job", ["keep", "watch"]), ("devbox", ["keep"])])
def test_only_a_job_ends_with_its_bucket(monkeypatch, kind, looks):
    """A devbox has what people put onto its disk."""
    begun = []
    monkeypatch.setattr(saving, "keep_results", "keep")
    monkeypatch.setattr(saving, "watch_bucket", "watch")
    mirrors = SimpleNamespace(start=lambda what, *_: begun.append(what))
    saving.mirror_results(SimpleNamespace(mirrors=mirrors, job=SimpleNamespace(kind=kind)))
    assert begun == looks


def test_a_look_at_the_bucket_is_rare_and_its_words_say_so(monkeypatch):
    waits, stopped = [], []
    monkeypatch.setattr(saving, "bucket_is_gone", lambda attempt: True)
    mirrors = SimpleNamespace(done=SimpleNamespace(wait=waits.append))
    bucket = SimpleNamespace(name="gone")
    saving.watch_bucket(SimpleNamespace(mirrors=mirrors, bucket=bucket, stop=stopped.append))
    assert waits == [300, 300] and "has not existed for 5 minutes or more" in stopped[0].reason


@pytest.mark.parametrize("takes", [False, True])
def test_what_the_bucket_does_not_take_for_long_is_left_to_later_passes(monkeypatch, takes):
    clock, said, passes = Clock(), [], []
    monkeypatch.setattr(saving, "time", clock)
    rested: list[bool] = []
    head = SimpleNamespace(rests=False)
    results = SimpleNamespace(
        failed={}, rest=lambda: rested.append(True), journal=SimpleNamespace(head=head)
    )

    def sync(stop):
        passes.append(clock.now)
        head.rests = takes and len(passes) == 3
        results.failed = {} if head.rests else {"late": "503"}

    results.sync = sync
    attempt = SimpleNamespace(
        mirrors=SimpleNamespace(results=results, turn=threading.Lock()),
        job=SimpleNamespace(upload_timeout=10),
        stopping=SimpleNamespace(pause=clock.sleep, event=threading.Event()),
        say=said.append,
    )
    saving.send_all(attempt)
    assert rested, "the other machines wait for a view"
    assert len(passes) == (3 if takes else 12) and len(said) == (not takes)
    assert takes or said[0].endswith("all results: 1 file is not in the bucket: late (503)")


@pytest.mark.parametrize(
    ("size", "goes", "lasts", "waited", "is_sent"),
    [
        (saving.LONG_LOG, False, 0.5, 1, False),
        (saving.LONG_LOG, False, 5, 1, True),
        (saving.LONG_LOG, True, 5, 0, True),
        (saving.LONG_LOG + 1, False, 0.5, 0, True),
        (0, False, 0.5, 1, False),
    ],
)
def test_a_log_is_sent_beside_the_results_if_it_is_long_or_they_take_long(
    size, goes, lasts, waited, is_sent
):
    """Else its end waits for a second, which one write an object takes."""
    clock, sent = Clock(), []
    sending = Sending(clock, lasts)
    log = SimpleNamespace(left=lambda: [("log", size)], finish=lambda *what: sent.append(what))
    attempt = SimpleNamespace(mirrors=SimpleNamespace(log=log), machine_goes=goes)
    saving.send_log_in_parallel(attempt, sending, 7)
    assert sum(sending.waits) == waited
    assert sent == [(saving.boot.console, 7)] * is_sent


class Ended:
    """A thread that is through, or one that is not."""

    def __init__(self, is_alive: bool = False):
        self.is_alive = lambda: is_alive


@pytest.mark.parametrize(
    ("finish", "lasts", "refused", "saved"),
    [
        ({}, False, {}, ("", True)),
        ({"late": "no"}, False, {}, ("late (no)", False)),
        ({"pipe": "no file"}, False, {"pipe": "no file"}, ("pipe (no file)", True)),
        (OSError("no disk"), False, {}, ("berg_results/one (OSError: no disk)", False)),
        ({}, True, {}, ("late (it was being sent)", False)),
    ],
)
def test_what_was_not_saved_is_named(monkeypatch, finish, lasts, refused, saved):
    def bring(note_trouble, seconds):
        assert seconds == math.inf
        if isinstance(finish, Exception):
            raise finish
        return finish

    def start(function, *arguments):
        if function is saving.send_results:
            function(*arguments)
        return Ended(lasts)

    monkeypatch.setattr(saving, "start_thread", start)
    monkeypatch.setattr(saving, "watch_upload", lambda attempt, sending, reason: None)
    attempt = uploading(Clock(), results_dir="one")
    attempt.mirrors.results = SimpleNamespace(
        finish=bring, left=lambda: [("late", 5)], refused=refused, cut={}, conclude=lambda left: {}
    )
    attempt.restart, attempt.is_re_created = lambda: None, False
    attempt.say, attempt.member = lambda text: None, SimpleNamespace(is_alone=True)
    uploads = saving.save(attempt, "")
    assert (uploads.lost.partition(": ")[2], uploads.is_whole) == saved


@pytest.mark.parametrize("is_known", [False, True])
def test_an_unreadable_state_is_replaced(monkeypatch, is_known):
    """With what the job's metadata say of it, unless the state has it still."""

    def read_job(attempt):
        raise BergError("its metadata are missing")

    monkeypatch.setattr(saving, "read_job", read_job)
    attempt = uploading(Clock())
    attempt.state.job = Summary("ada", created_at="noon" if is_known else "")
    attempt.job.summary = lambda: Summary("of its metadata")
    attempt.machine = SimpleNamespace(name="m", zone="z")
    attempt.insist = lambda write, seconds: write()
    saving.replace_state(attempt, "its state is damaged", "1 file is not in the bucket")
    state = attempt.state
    assert state.job.user == ("ada" if is_known else "of its metadata")
    assert (state.state, state.machine, state.zone) == ("FAILED", "m", "z")
    why = "the job was ended because its state is damaged"
    assert state.reason.startswith(why) and state.lost in state.reason and attempt.member.leads


@pytest.mark.parametrize(
    ("found", "is_saved", "is_written"),
    [
        (State("RUNNING", machine="m", zone="z"), True, False),
        (State("RUNNING", machine="other", zone="z"), False, False),
        (State("RUNNING", machine="m", zone="y"), False, False),
        (State("FAILED", machine="other", zone="z"), True, False),
        (NoJob("none"), True, False),
        (Damaged("it is damaged"), True, True),
    ],
)
def test_what_a_job_left_is_saved_unless_another_worker_has_it(
    monkeypatch, found, is_saved, is_written
):
    done = []

    def read():
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(saving, "save", lambda attempt, reason: (done.append("save"), Uploads())[1])
    monkeypatch.setattr(saving, "send_log", lambda attempt: done.append("log"))
    monkeypatch.setattr(saving, "replace_state", lambda attempt, why, lost: done.append(why))
    attempt = uploading(Clock())
    attempt.states.read, attempt.machine = read, SimpleNamespace(name="m", zone="z")
    saving.save_alone(attempt, "it was killed")
    assert done == ["save", "log"] * is_saved + ["it is damaged"] * is_written
    assert attempt.member.leads is False


def test_the_state_hears_of_passes_every_twenty_seconds(monkeypatch):
    """Or a second earlier: a pass may begin a little before its time."""
    clock, told = Clock(), []
    monkeypatch.setattr(saving, "time", clock)
    moments = iter([1000, 1018.9, 1019, 1037.9, 1038, 1058])

    def sync(seconds, stop, only_new=False):
        clock.now = next(moments)
        return 0

    results = SimpleNamespace(
        is_behind=False, failed={}, underway={}, synced_until="now", sync=sync
    )
    done = SimpleNamespace(is_set=lambda: clock.now == 1058)
    mirrors = SimpleNamespace(done=done, turn=threading.Lock(), results=results)
    states = SimpleNamespace(write_quietly=lambda **fields: told.append(clock.now))
    monkeypatch.setattr(saving, "is_done_after", lambda attempt, pause, sent: False)
    saving.keep_results(SimpleNamespace(mirrors=mirrors, states=states))
    assert told == [1000, 1019, 1038, 1058]


@pytest.mark.parametrize(
    ("sent", "waits", "passes"),
    [
        (0, [10], []),
        (3, [1, 1, 8], [9, 8]),  # new files, until there are none
    ],
)
def test_between_two_passes_files_that_are_new_are_sent(monkeypatch, sent, waits, passes):
    clock, waited, sends = Clock(), [], []
    monkeypatch.setattr(saving, "time", clock)

    def wait(seconds):
        waited.append(seconds)
        clock.now += seconds
        return False

    def send(attempt, seconds, only_new):
        assert only_new
        sends.append(seconds)
        return 2 - len(sends)

    monkeypatch.setattr(saving, "send_changes", send)
    done = SimpleNamespace(is_set=lambda: False, wait=lambda seconds: True)
    mirrors = SimpleNamespace(done=done, hurry=SimpleNamespace(wait=wait))
    attempt = SimpleNamespace(mirrors=mirrors)
    assert saving.is_done_after(attempt, 10, sent) is False
    assert (waited, sends) == (waits, passes)
    mirrors.hurry.wait = lambda seconds: True
    assert saving.is_done_after(attempt, 10, sent) is True and sends == passes


@pytest.mark.parametrize("is_alive", [False, True])
def test_the_last_sample_has_a_second(is_alive):
    waited = []
    sampling = SimpleNamespace(is_alive=lambda: is_alive, join=waited.append)
    mirrors = SimpleNamespace(stop=lambda: waited.append("mirrors"))
    saving.stop_mirrors(SimpleNamespace(mirrors=mirrors, sampling=sampling))
    assert waited == ["mirrors"] + [1] * is_alive


@pytest.mark.parametrize("final", [True, False])
def test_what_a_lost_machine_had_sent_is_known_by_its_last_view(memory, final):
    view = views.encode(views.Head(at_ns=1, full=True, final=final), [])
    memory.write(f"{views.prefix_of('one', 'disk')}00000001", view, 0)
    attempt = SimpleNamespace(bucket=memory, name="one", member=SimpleNamespace(is_alone=True))
    uploads = saving.of_lost_machine(attempt)
    assert uploads.is_whole == final and ("--resume one" in uploads.lost) != final
