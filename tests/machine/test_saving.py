from berg.machine import saving


def test_what_writes_many_files_is_mirrored_less_often():
    """360 operations an hour for each file that changes all the time, but 60 where 600 of them do."""
    assert [saving.pause_after(changed) for changed in (0, 1, 100, 300, 600, 10**6)] == [
        10,
        10,
        10,
        30,
        60,
        60,
    ]
