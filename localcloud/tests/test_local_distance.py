# ruff: noqa: F811 (fixtures are imported, and arguments have their names)
"""A cloud that is far away: round trips of all services, handshakes, bandwidth, and what the log
says of them.
"""

import asyncio
import time

import pytest
import requests
from local_cloud import MB, PROJECT, bucket, client, http_session, server  # noqa: F401

from localcloud.distance import Link
from localcloud.identity.tokens import Tokens

AWAY = 0.2  # seconds there and back
FAR = 60  # seconds there and back, after which who is as far away as that has given up


@pytest.fixture
def far(server, http_session):
    """What sets how far the cloud is."""
    url = f"{server.url}/_berg/settings"
    yield lambda **settings: http_session.post(url, json=settings).json()
    http_session.post(url, json={"latency": 0, "machine_latency": None, "bandwidth": 0})


def seconds(ask) -> float:
    began = time.monotonic()
    assert ask().status_code == 200
    return time.monotonic() - began


@pytest.mark.parametrize(
    "path", ["/monitoring/v1/projects/{}/dashboards", "/storage/v1/b?project={}"]
)
def test_every_service_is_as_far_and_a_new_connection_thrice(server, http_session, far, path):
    session = requests.Session()
    session.headers.update(http_session.headers)
    assert far(latency=AWAY)["latency"] == AWAY
    url = server.url + path.format(PROJECT)
    first, second = (seconds(lambda: session.get(url)) for _ in range(2))
    assert first >= 3 * AWAY and second >= AWAY
    far(latency=FAR)
    log = session.get(f"{server.url}/_berg/requests", timeout=FAR / 2).json()["requests"][-2:]
    assert [each["trips"] for each in log] == [3, 1] and all(each["laptop"] for each in log)
    assert log[1]["ended"] - log[1]["began"] >= AWAY and log[1]["began"] >= log[0]["ended"]


def test_who_is_not_the_laptop_may_be_near(server, far, http_session):
    session = requests.Session()
    machine = Tokens(server.folder).mint("machine@berg.local", 3600)
    session.headers["Authorization"] = f"Bearer {machine}"
    far(latency=FAR, machine_latency=0)
    session.get(f"{server.url}/storage/v1/b?project={PROJECT}", timeout=FAR / 2)
    last = http_session.get(f"{server.url}/_berg/requests").json()["requests"][-1]
    assert not last["laptop"]


def test_a_large_download_waits_for_each_window(server, bucket, http_session, far):
    bucket.blob("large").upload_from_string(bytes(7 * MB))
    url = f"{server.url}/{bucket.name}/large"
    http_session.get(url)
    far(latency=AWAY)
    assert seconds(lambda: http_session.get(url)) >= 3 * AWAY, "its beginning, and two windows"


def test_bytes_take_their_time_each_direction_on_its_own(server, bucket, http_session, far):
    upload = f"{server.url}/upload/storage/v1/b/{bucket.name}/o?uploadType=media&name=sent"
    url = f"{server.url}/{bucket.name}/sent"
    far(bandwidth=4 * MB)
    up = seconds(lambda: http_session.post(upload, data=bytes(2 * MB)))
    down = seconds(lambda: http_session.get(url))
    assert up >= 0.5 and down >= 0.5


def test_what_goes_up_holds_back_nothing_that_comes_down():
    link = Link(bandwidth=4 * MB)
    began = time.monotonic()
    asyncio.run(link.carry("up", 2 * MB))
    assert link.free_at["up"] >= began + 0.5 and "down" not in link.free_at
