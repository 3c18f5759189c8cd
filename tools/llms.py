"""Write the list of pages for language models, https://llmstxt.org, from the index of docs/.

python tools/llms.py docs/llms.txt
"""

import re
import sys
from pathlib import Path

OPTIONAL = "To change it"  # the section that a reader with little room may skip


def page(index: str) -> str:
    (summary,) = re.findall(r"^Berg runs .+$", index, re.M)
    lines = ["# Berg", "", f"> {summary}", "", "## Start", ""]
    lines.append("- [README](../README.md): what Berg is, the quickstart, how it works")
    for line in index.splitlines():
        if heading := re.fullmatch(r"## (.+)", line):
            lines += ["", f"## {'Optional' if heading[1] == OPTIONAL else heading[1]}", ""]
        elif row := re.fullmatch(r"- (\[.+\]\(.+\): .+)", line):
            lines.append(f"- {row[1]}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(page(target.with_name("README.md").read_text()))
