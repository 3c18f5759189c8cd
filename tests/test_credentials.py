"""Credentials of the embedded cloud: what google-auth says of them."""

import json
import logging

from google.auth.transport.requests import AuthorizedSession

from berg import credentials


def test_the_embedded_clouds_credentials_are_no_matter_for_the_log(cloud, caplog):
    """Else google-auth complains of them wherever a program of a user's writes a log."""
    session = AuthorizedSession(credentials.find(str(cloud.folder / "credentials.json")))
    with caplog.at_level(logging.DEBUG):
        assert session.get(f"{cloud.url}/storage/v1/b?project=berg-local").ok
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_other_lines_of_google_auths_log_stay(caplog, cloud):
    credentials.find(str(cloud.folder / "credentials.json"))
    logging.getLogger(credentials.LOG).error("it expired")
    assert [each.message for each in caplog.records] == ["it expired"]
    assert json.loads((cloud.folder / "credentials.json").read_text())["audience"] == "berg-local"
