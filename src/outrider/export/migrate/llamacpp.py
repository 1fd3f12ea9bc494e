"""llama.cpp (as in llama-cpp-python 0.3.36): draft flags have a prefix, and `--spec-type` switches speculation on."""

from __future__ import annotations

from outrider.export.migrate.base import Migration, Rule, Taken, is_flag, split_off

_PREFIX = "flags of speculation begin with --spec"
FLAGS = {
    **dict.fromkeys(("--draft", "--draft-n", "--draft-max"), Rule("--spec-draft-n-max", _PREFIX)),
    **dict.fromkeys(("--draft-min", "--draft-n-min"), Rule("--spec-draft-n-min", _PREFIX)),
    **dict.fromkeys(("-cd", "--ctx-size-draft"), Rule("", "the draft's context is as long as the target's")),
    "--no-mmap": Rule("--load-mode none", "how weights are read is one setting now", "no"),
    "--mlock": Rule("--load-mode mmap+mlock", "how weights are read is one setting now", "no"),
    "--mmap": Rule("--load-mode mmap", "how weights are read is one setting now", "no"),
    "--spec-ngram-size-n": Rule("size-n", "each type of n-grams has its own"),
    "--spec-ngram-size-m": Rule("size-m", "each type of n-grams has its own"),
    "--spec-ngram-min-hits": Rule("min-hits", "each type of n-grams has its own"),
}
_ATTENTION = ("-fa", "--flash-attn")
_DRAFTS = ("-md", "--model-draft", "--spec-draft-model", "-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf")
_TYPE = "--spec-type"
_NGRAM_OF = {"size-n": "n-match", "size-m": "n-max"}  # of ngram-mod, which has no least number of hits
_DRAFT_TYPES = {"draft": "draft-simple", "eagle3": "draft-eagle3", "mtp": "draft-mtp", "dflash": "draft-dflash"}


def migrate(words: list[str], out: Migration) -> list[str]:
    """The words of the current command line."""
    kept: list[str] = []
    kind = next((words[at + 1] for at, word in enumerate(words[:-1]) if word == _TYPE), None)
    for part in split_off(words, FLAGS):
        if isinstance(part, str):
            kept.append(part)
            if is_flag(part):
                out.unchanged.append(part)
            continue
        new = _name(part, kind)
        if not new:
            out.tell("gone", part.text, "", FLAGS[part.name].why)
            continue
        now = [*new.split(), *([] if part.value is None else [part.value])]
        kept += now
        out.tell("renamed", part.text, " ".join(now), FLAGS[part.name].why)
    return _attention(_switch(_type(kept, out), out), out)


def _name(part: Taken, kind: str | None) -> str:
    new = FLAGS[part.name].new
    if not new or new.startswith("--"):
        return new
    if kind == "ngram-mod":
        return f"--spec-ngram-mod-{_NGRAM_OF[new]}" if new in _NGRAM_OF else ""
    return f"--spec-{kind or 'ngram-simple'}-{new}"


def _type(words: list[str], out: Migration) -> list[str]:
    for at, word in enumerate(words[:-1]):
        if word == _TYPE and words[at + 1] in _DRAFT_TYPES:
            old, words[at + 1] = words[at + 1], _DRAFT_TYPES[words[at + 1]]
            out.tell("renamed", f"{_TYPE} {old}", f"{_TYPE} {words[at + 1]}", "its name now")
    return words


def _switch(words: list[str], out: Migration) -> list[str]:
    draft = next((word for word in words if word.partition("=")[0] in _DRAFTS), None)
    if draft is None or _TYPE in words:
        return words
    out.tell("added", draft, f"{_TYPE} draft-simple", "a draft model alone no longer switches speculation on")
    added = [_TYPE, "draft-simple"]
    if "--spec-draft-n-max" not in words:
        added += ["--spec-draft-n-max", "16"]
        out.tell("added", "", "--spec-draft-n-max 16", "16 was the default, which is 3 now")
    if not {"--spec-draft-p-min", "--draft-p-min"} & set(words):
        added += ["--spec-draft-p-min", "0.75"]
        out.tell("added", "", "--spec-draft-p-min 0.75", "0.75 was the default, which is 0 now")
    return words + added


def _attention(words: list[str], out: Migration) -> list[str]:
    kept: list[str] = []
    for at, word in enumerate(words):
        kept.append(word)
        if word in _ATTENTION and (at + 1 == len(words) or words[at + 1] not in ("on", "off", "auto", "1", "0")):
            kept.append("on")
            out.tell("changed", word, f"{word} on", "it takes on, off or auto, and would swallow the word behind it")
    return kept
