"""What a machine's metadata says of its place among others."""

import pytest

from berg.machine import peers


@pytest.mark.parametrize(
    ("attributes", "number"),
    [
        ({"worker-id": "3", "tpu-env": "TPU_WORKER_ID: '4'\n"}, 3),
        ({"agent-worker-number": "2"}, 2),
        ({"tpu-env": "ZONE: 'us-east5-a'\nTPU_WORKER_ID: '1'\nTOPOLOGY: '4x4'\n"}, 1),
        ({"tpu-env": "TPU_WORKER_ID: 0"}, 0),
        ({"tpu-env": "ZONE: 'us-east5-a'\n"}, None),
        ({}, None),
    ],
)
def test_a_worker_s_number_is_read_from_whatever_says_it(attributes, number):
    assert peers.worker_number({"attributes": attributes}) == number
