"""Write the list of pages for language models, https://llmstxt.org, from the index of docs/.

python tools/llms.py docs/llms.txt
"""

import re
import sys
from pathlib import Path

TOP = Path(__file__).parent.parent
OPTIONAL = "To change it"  # the section that a reader with little room may skip


def page() -> str:
    readme = (TOP / "README.md").read_text()
    (summary,) = re.findall(r"^Berg runs .+$", readme, re.M)
    lines = ["# Berg", "", f"> {summary}", "", "## Start", ""]
    lines.append("- [README](../README.md): what Berg is, the quickstart, how it works")
    for line in (TOP / "docs/README.md").read_text().splitlines():
        if heading := re.fullmatch(r"## (.+)", line):
            lines += ["", f"## {'Optional' if heading[1] == OPTIONAL else heading[1]}", ""]
        elif row := re.fullmatch(r"- (\[.+\]\(.+\): .+)", line):
            lines.append(f"- {row[1]}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
