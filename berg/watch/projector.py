"""What TensorBoard's projector reads beside event files, as torch.utils.tensorboard writes it.

    projector_config.pbtxt       which embeddings there are, and the files of each
    STEP/TAG/tensors.tsv, metadata.tsv, sprite.png

TensorBoard opens every file that such a configuration names. It comes out of the bucket, where
machines write, so that one is brought only if it names files of its own folder and says nothing
that is not known here. Not covered: checkpoints of TensorFlow's as embeddings.
"""

import re

CONFIG = "projector_config.pbtxt"
FILES = r"(^|/)(tensors|metadata)\.tsv$|(^|/)sprite\.png$|(^|/)projector_config\.pbtxt$"
LARGEST = 1 << 20  # bytes of a configuration
# Letters that no escape or quote is made of; a part of a path begins with no dot.
PATH = r"\w[\w:.=+ -]*(/\w[\w:.=+ -]*)*"
LINES = re.compile(
    rf'embeddings {{|sprite {{|}}|tensor_name: "[\w:./=+ -]*"|single_image_dim: \d+|'
    rf'(tensor|metadata|image)_path: "{PATH}"|'
)


def checked(config: bytes) -> str | None:
    """Return a configuration line by line as it was understood; None if it names anything but files
    below its own folder.
    """
    if len(config) > LARGEST:
        return None
    lines = [line.strip() for line in config.decode(errors="replace").splitlines()]
    if not all(map(LINES.fullmatch, lines)):
        return None
    return "".join(f"{line}\n" for line in lines)
