"""What a migration says, and how flags are taken out of a command line by a table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from outrider.errors import ConfigError

Kind = Literal["renamed", "moved", "added", "gone", "changed", "unknown"]


@dataclass(frozen=True, slots=True)
class Change:
    """``old`` as it stood; ``new``: what stands for it now, empty where nothing does; ``why``: one sentence."""

    kind: Kind
    old: str
    new: str
    why: str


@dataclass(slots=True)
class Migration:
    """``line``: the current command line (or program); ``files``: texts of files that it reads, by name;
    ``unchanged``: flags that no table took, known here or not, in order; what stands for one of them may still have
    changed."""

    engine: str
    old: str
    line: str = ""
    changes: list[Change] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)

    def tell(self, kind: Kind, old: str, new: str, why: str) -> None:
        """One more change."""
        self.changes.append(Change(kind, old, new, why))

    @property
    def kept(self) -> list[str]:
        """Flags that were passed through as they are, each once."""
        changed = {change.old.split()[0] for change in self.changes if change.old}
        return [name for name in dict.fromkeys(self.unchanged) if name not in changed]

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"unchanged": self.kept}


@dataclass(frozen=True, slots=True)
class Rule:
    """A dead flag. ``value``: whether a word follows it; "maybe" where it may; ``new``: its name now, "" for gone."""

    new: str = ""
    why: str = ""
    value: Literal["yes", "no", "maybe"] = "yes"


@dataclass(frozen=True, slots=True)
class Taken:
    """A flag of the table, as it stood, with its value."""

    name: str
    value: str | None
    text: str


def plain(word: str) -> str:
    """A flag's name with dashes, without a value; other words as they are."""
    name = word.partition("=")[0]
    return "--" + name[2:].replace("_", "-") if name.startswith("--") else name


def is_flag(word: str) -> bool:
    """Whether a word is a flag, and not a value such as -1."""
    return bool(re.match(r"--?[A-Za-z]", word))


def split_off(words: list[str], rules: Mapping[str, Rule]) -> Iterator[str | Taken]:
    """The words in order; a flag of the table comes with its value as one ``Taken``.

    Raises ConfigError where a flag that takes a value has none.
    """
    index = 0
    while index < len(words):
        word = words[index]
        rule = rules.get(plain(word)) if is_flag(word) else None
        index += 1
        if rule is None:
            yield word
            continue
        if "=" in word:
            yield Taken(plain(word), word.partition("=")[2], word)
            continue
        follows = words[index] if index < len(words) and not is_flag(words[index]) else None
        if rule.value == "yes" and follows is None:
            raise ConfigError(f"{word} has no value in that command line: give the whole line")
        if rule.value == "no" or (rule.value == "maybe" and (follows or "").lower() not in ("true", "false")):
            yield Taken(plain(word), None, word)
            continue
        assert follows is not None
        index += 1
        yield Taken(plain(word), follows, f"{word} {follows}")


def number(text: str | None) -> Any:
    """A number where it is one, true and false, else the text itself."""
    if text is None:
        return True
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text
