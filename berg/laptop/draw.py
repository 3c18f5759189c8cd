"""Values for a sweep that are drawn, not listed: at random, or by a Sobol sequence, from a seed.

A Sobol sequence covers the space evenly: of the first 2^k points each 1/2^k of every parameter's
range has exactly one. The direction numbers are those of Joe and Kuo
(https://web.maths.unsw.edu.au/~fkuo/sobol/); a random shift that the seed gives makes each sweep
another one (Lemieux, 2009, "digital shift").

Not covered: more than ten parameters with Sobol, conditional parameters, learning from results.
"""

import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from berg import BergError

RANDOM, SOBOL = "random", "sobol"
BITS = 30
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
RANGE = re.compile(rf"(?:(log|int):)?({NUMBER})\.\.({NUMBER})")
NAME = re.compile(r"[A-Za-z_]\w*")
# Of each dimension after the first: the polynomial's coefficients, and the first numbers.
DIRECTIONS = (
    (0, (1,)),
    (1, (1, 3)),
    (1, (1, 3, 1)),
    (2, (1, 1, 1)),
    (1, (1, 1, 3, 3)),
    (4, (1, 3, 5, 13)),
    (2, (1, 1, 5, 5, 17)),
    (4, (1, 1, 5, 5, 5)),
    (7, (1, 1, 7, 11, 19)),
)


@dataclass(frozen=True)
class Param:
    """What a parameter may be: one of some texts, or a number between two."""

    name: str
    choices: tuple[str, ...] = ()
    kind: str = ""  # log: evenly in its logarithm; int: a whole number
    low: float = 0.0
    high: float = 0.0

    def at(self, share: float) -> str:
        """Return the value at a share of its range, 0 to below 1."""
        if self.choices:
            return self.choices[int(share * len(self.choices))]
        if self.kind == "int":
            return str(int(self.low) + int(share * (self.high - self.low + 1)))
        if self.kind == "log":
            span = math.log(self.high / self.low)
            return f"{self.low * math.exp(share * span):.6g}"
        return f"{self.low + share * (self.high - self.low):.6g}"


def parse(text: str) -> Param:
    """Return the parameter that a text means, such as lr=log:1e-5..1e-1 or bs=32|64.

    Raise BergError for one that means none.
    """
    name, equals, values = text.partition("=")
    if not equals or not values or not NAME.fullmatch(name):
        raise wrong(text, "give NAME=A|B|C, NAME=LOW..HIGH, NAME=log:LOW..HIGH, NAME=int:LOW..HIGH")
    found = RANGE.fullmatch(values)
    if found is None:
        return Param(name, tuple(values.split("|")))
    param = Param(name, (), found[1] or "", float(found[2]), float(found[3]))
    if not param.low < param.high:
        raise wrong(text, "the first number must be below the second")
    if param.kind == "log" and param.low <= 0:
        raise wrong(text, "a logarithm needs numbers above 0")
    if param.kind == "int" and not (param.low.is_integer() and param.high.is_integer()):
        raise wrong(text, "give whole numbers")
    return param


def wrong(text: str, why: str) -> BergError:
    return BergError(f"--param {text!r}: {why}")


def rows(texts: tuple[str, ...], samples: int, sampler: str, seed: int) -> list[dict[str, str]]:
    """Return so many draws, the same for the same seed."""
    params = [parse(text) for text in texts]
    names = [param.name for param in params]
    if len(set(names)) < len(names):
        raise BergError("--param names a parameter twice; give all of its values at once")
    if sampler == SOBOL and len(params) > len(DIRECTIONS) + 1:
        raise BergError(f"--sampler sobol draws {len(DIRECTIONS) + 1} parameters at most")
    points = SAMPLERS[sampler](len(params), random.Random(seed))
    found = []
    for _ in range(samples):
        point = next(points)
        values = [param.at(share) for param, share in zip(params, point, strict=True)]
        found.append(dict(zip(names, values, strict=True)))
    return found


def uniform(dimensions: int, dice: random.Random) -> Iterator[list[float]]:
    """Yield points at random."""
    while True:
        yield [dice.random() for _ in range(dimensions)]


def sobol(dimensions: int, dice: random.Random) -> Iterator[list[float]]:
    """Yield the points of a shifted Sobol sequence."""
    directions = [direction_numbers(each) for each in range(dimensions)]
    point = [dice.getrandbits(BITS) for _ in range(dimensions)]
    index = 0
    while True:
        yield [each / 2**BITS for each in point]
        # Gray code: the next point differs by the number of the lowest bit of the index that is 0.
        bit = (~index & (index + 1)).bit_length() - 1
        point = [each ^ numbers[bit] for each, numbers in zip(point, directions, strict=True)]
        index += 1


def direction_numbers(dimension: int) -> list[int]:
    """Return the direction numbers of a dimension, from 0, as fractions of 2^BITS."""
    if dimension == 0:
        return [1 << (BITS - 1 - bit) for bit in range(BITS)]
    coefficients, first = DIRECTIONS[dimension - 1]
    degree = len(first)
    found = [number << (BITS - 1 - bit) for bit, number in enumerate(first)]
    for bit in range(degree, BITS):
        number = found[bit - degree] ^ (found[bit - degree] >> degree)
        for k in range(1, degree):
            if (coefficients >> (degree - 1 - k)) & 1:
                number ^= found[bit - k]
        found.append(number)
    return found


SAMPLERS = {RANDOM: uniform, SOBOL: sobol}
