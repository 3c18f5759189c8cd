"""A dashboard of machines is made once, brought up to date, and deleted after a question."""

from typing import Any

from conftest import Cloud

PLACE = "/monitoring/v1/projects/berg-local/dashboards"


def listed(cloud: Cloud) -> list[dict[str, Any]]:
    return list(cloud.call("GET", PLACE).get("dashboards", []))


def test_it_is_made_once_and_deleted_after_a_question(cloud: Cloud) -> None:
    cloud.fails("dashboard", "--delete", "-y", says="berg dashboard")
    assert not listed(cloud)
    cloud.call("POST", PLACE, {"displayName": "Berg training", "mosaicLayout": {"columns": 1}})
    done = cloud.run("dashboard")
    assert done.code == 0 and "Created Berg training" in done.err, done.err
    assert "/monitoring/dashboards/builder/" in done.out and len(listed(cloud)) == 2
    assert "Updated" in cloud.run("dashboard").err and len(listed(cloud)) == 2
    ours = next(row for row in listed(cloud) if "berg" in row.get("labels", {}))
    titles = [tile["widget"]["title"] for tile in ours["mosaicLayout"]["tiles"]]
    assert titles == ["CPU", "Network", "Disk"]
    assert cloud.run("dashboard", "--delete").code == 1 and len(listed(cloud)) == 2
    assert cloud.run("dashboard", "--delete", "-y").code == 0
    assert [row.get("labels") for row in listed(cloud)] == [None]  # another's of that name
