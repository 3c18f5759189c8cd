"""What Kubernetes says of pods, in berg's words."""

from berg.gke import status


def test_an_image_that_cannot_be_pulled_has_one_reason_between_two_tries_and_at_them():
    """So that `berg tail` says it once."""
    said = set()
    for reason, before in (
        ("ErrImagePull", ""),
        ("ImagePullBackOff", 'Back-off pulling image "a/b:1": '),
    ):
        waiting = {"reason": reason, "message": f"{before}ErrImagePull: not found"}
        pod = {"status": {"containerStatuses": [{"image": "a/b:1", "state": {"waiting": waiting}}]}}
        said.add(status.container_trouble(pod))
    assert said == {"its image a/b:1 cannot be pulled: ErrImagePull: not found"}
