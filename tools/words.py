"""Words that this project uses and its field does not, counted in what people read.

    python tools/words.py          how often each is written; exits 1 if one is
    python tools/words.py --all     every line of them

Plain English is short sentences with the common word: compare the help of gcloud, uv and ruff.
"""

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

TOP = Path(__file__).parent.parent
PLACES = ("berg", "localcloud/src", "localcloud/README.md", "docs", "README.md", "CONTRIBUTING.md")
SUFFIXES = (".py", ".md", ".sh", ".js")
# What is written -> what a native engineer would write.
WORDS = {
    r"anew": "again, new, re-create",
    r"mend(?:s|ed|ing)?": "fix, repair",
    r"somebody|nobody": "name the actor: another user, no process, the caller",
    r"beside": "next to, besides, in addition to, in parallel",
    r"stands? (?:in|for|at|by|there|below|under|before|behind)": "is (in), is stored in",
    r"(?:it|which|that|what|they|who|files?|objects?|folders?) lies?": "is (in), is stored in",
    r"for who|of whom|to whom|whoever": "for callers that, the job that owns it",
    r"patience": "timeout",
    r"told|said": "message, reported, value, printed",
    r"brought": "downloaded, fetched, copied",
    r"befell|befalls?": "happened to",
    r"is over": "is finished",
    r"(?:goes|go|went|going) on": "continues",
    r"comes? back": "restarts, is restored",
    r"is told|are told|was told": "hears, is notified, the message is",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="show every line")
    show_all = parser.parse_args().all
    counts: Counter[str] = Counter()
    for path in files():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for pattern in WORDS:
                found = re.findall(rf"\b(?:{pattern})\b", line, re.I)
                counts[pattern] += len(found)
                if found and show_all:
                    print(f"{path.relative_to(TOP)}:{number}: {line.strip()[:120]}")
    for pattern, count in counts.most_common():
        if count:
            print(f"{count:5}  {pattern}: write {WORDS[pattern]}")
    total = counts.total()
    print(f"{total} words that the field does not use")
    sys.exit(total > 0)


def files() -> list[Path]:
    """The files of this project that people read, without what is generated or downloaded."""
    found = [TOP / place for place in PLACES if place.endswith(".md")]
    for place in PLACES:
        found += [path for path in (TOP / place).rglob("*") if path.suffix in SUFFIXES]
    return [path for path in sorted(found) if "tests" not in path.parts]


if __name__ == "__main__":
    main()
