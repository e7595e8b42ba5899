"""A Containerfile, read as far as this project's own goes."""

import re
from typing import NamedTuple


class Instruction(NamedTuple):
    """A line such as `COPY --from=build /a /b`: its word, and the rest."""

    word: str
    rest: str


def stages(text: str) -> dict[str, list[Instruction]]:
    """The instructions of each stage by its name; before the first stage, of ""."""
    joined = re.sub(r"\\\n", "", re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE))
    found: dict[str, list[Instruction]] = {"": []}
    name = ""
    for line in filter(None, map(str.strip, joined.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            name = rest.partition(" AS ")[2]
            found[name] = []
        found[name].append(Instruction(word, rest.strip()))
    return found


def rests(stage: list[Instruction], word: str) -> list[str]:
    """What follows a word, for each of its instructions."""
    return [each.rest for each in stage if each.word == word]


def environment(stage: list[Instruction]) -> dict[str, str]:
    """The variables of ENV, none of which has blanks in its value."""
    pairs = [pair.partition("=") for rest in rests(stage, "ENV") for pair in rest.split()]
    return {name: value for name, _, value in pairs}
