"""What a requirement of python packages says, as far as berg needs it: name, extras, versions."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[([^\]]*)\])?\s*([^;@#]*)(@?)")
BOUND = re.compile(r"(>=|<=|<|>|===?|~=)(\d+)(?:\.(\d+))?(.*)")
# Modules whose packages have other names.
PACKAGES = {
    "attr": ["attrs"],
    "bs4": ["beautifulsoup4"],
    "cv2": ["opencv-python", "opencv-python-headless", "opencv-contrib-python"],
    "dateutil": ["python-dateutil"],
    "dotenv": ["python-dotenv"],
    "faiss": ["faiss-cpu", "faiss-gpu"],
    "git": ["gitpython"],
    "hydra": ["hydra-core"],
    "OpenSSL": ["pyopenssl"],
    "PIL": ["pillow"],
    "skimage": ["scikit-image"],
    "sklearn": ["scikit-learn"],
    "umap": ["umap-learn"],
    "yaml": ["pyyaml"],
}


@dataclass(frozen=True)
class Requirement:
    name: str
    extras: frozenset[str] = frozenset()
    specifiers: frozenset[str] = frozenset()
    has_place: bool = False  # it names a URL

    @property
    def key(self) -> tuple[str, frozenset[str], frozenset[str]]:
        return self.name, self.extras, self.specifiers


def normal(name: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def packages_of(module: str) -> list[str]:
    """Return the names that the package of a module may have."""
    top = module.partition(".")[0]
    return [*PACKAGES.get(top, []), normal(top)]


def parse(texts: Iterable[str]) -> list[Requirement]:
    """Return the requirements in texts of PEP 508; other lines are left out, and so are markers."""
    found = []
    for text in texts:
        if match := REQUIREMENT.match(text):
            extras = (match[2] or "").split(",")
            specifier = re.sub(r"[\s()]", "", match[3])
            made = with_extras(match[1], extras, specifier)
            found.append(Requirement(*made.key, has_place=bool(match[4])))
    return found


def with_extras(name: str, extras: Iterable[str], specifier: str) -> Requirement:
    wanted = frozenset(normal(each) for each in extras if each.strip())
    return Requirement(normal(name), wanted, frozenset(specifier.split(",")) - {""})


def number(version: str) -> tuple[int, ...]:
    """Return the numbers of a version such as 3.12."""
    return tuple(int(each) for each in re.findall(r"\d+", version))


def meets(version: str, specifiers: str) -> bool:
    """Return whether a version of two numbers, such as 3.12, can meet specifiers such as >=3.10,<4.

    What is not understood is met, and so is a bound that only a third number decides.
    """
    here = number(version)[:2]
    return all(meets_one(here, each) for each in specifiers.replace(" ", "").split(","))


def meets_one(here: tuple[int, ...], specifier: str) -> bool:
    match = BOUND.fullmatch(specifier)
    if not match:
        return True
    sign, bound, rest = match[1], (int(match[2]), int(match[3] or 0)), match[4]
    if match[3] is None and rest == ".*":  # a major version
        here, bound, rest = (here[0], 0), (bound[0], 0), ""
    is_exact = bool(re.search(r"[1-9]", rest))  # >=3.13.14: whether 3.13 meets it is not known
    if sign == "~=" and not rest:
        return here[0] == bound[0] and here >= bound
    if here == bound:
        return is_exact or sign != "<"
    return sign[0] == ("<" if here < bound else ">")
