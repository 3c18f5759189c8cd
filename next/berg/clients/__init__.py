"""What only uses jobs, as a user's own script would: no hook, and the core does not import it."""

COMMANDS: dict[str, str] = {  # command -> its module
    "costs": "costs",
    "diff": "diff",
    "gpus": "gpus",
    "image": "image",
    "reap": "reap",
    "skill": "skill",
    "sweep": "sweep",
    "top": "top",
}
