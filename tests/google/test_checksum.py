"""The crc32c of pieces that came side by side."""

import os

import google_crc32c
import pytest

from berg.google.storage import combined, crc32c_of, encoded


@pytest.mark.parametrize("size", [0, 1, 7, 4096, (3 << 20) + 1])
def test_the_checksum_of_a_whole_is_made_of_those_of_its_pieces(size):
    first, second = os.urandom(1000), os.urandom(size)
    whole = combined(google_crc32c.value(first), google_crc32c.value(second), size)
    assert encoded(whole) == crc32c_of([first + second])
    assert combined(0, google_crc32c.value(second), size) == google_crc32c.value(second)
