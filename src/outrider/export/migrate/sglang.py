"""SGLang (0.5.23): flags that were renamed, that went with the algorithms they were for, or that are abbreviations."""

from __future__ import annotations

from outrider.export.migrate.base import Migration, Rule, is_flag, plain, split_off

_ABBREVIATED = "an abbreviation that the parser may take or not; the whole name is safe"
FLAGS = {
    "--speculative-algo": Rule("--speculative-algorithm", _ABBREVIATED),
    "--speculative-draft": Rule(
        "--speculative-draft-model-path", "it abbreviated the path; several flags begin so now, and it is refused"
    ),
    "--draft-model-path": Rule("--speculative-draft-model-path", "flags of speculation begin with --speculative"),
    "--num-speculative-steps": Rule("--speculative-num-steps", "flags of speculation begin with --speculative"),
    "--eagle-topk": Rule("--speculative-eagle-topk", "flags of speculation begin with --speculative"),
    "--num-draft-tokens": Rule("--speculative-num-draft-tokens", "flags of speculation begin with --speculative"),
    "--mem-frac": Rule("--mem-fraction-static", _ABBREVIATED),
    "--mem-fraction": Rule("--mem-fraction-static", _ABBREVIATED),
    "--disable-radix": Rule("--disable-radix-cache", _ABBREVIATED, "no"),
    "--tp": Rule("--tp-size", _ABBREVIATED),
    "--dp": Rule("--dp-size", _ABBREVIATED),
    "--cuda-graph-max-bs": Rule("--cuda-graph-max-bs-decode", "decoding and prefill have one each"),
    "--speculative-dflash-draft-window-size": Rule(
        "--speculative-draft-window-size", "other algorithms have windows too"
    ),
    "--speculative-ngram-branch-length": Rule("--speculative-ngram-max-trie-depth", "it is the depth of the trie"),
    "--speculative-ngram-max-match-window-size": Rule("", "the longest match in the trie counts"),
    "--speculative-ngram-min-match-window-size": Rule("", "the longest match in the trie counts"),
    "--speculative-lookahead-one-branch": Rule("", "LOOKAHEAD is NGRAM now, whose trie has a breadth", "no"),
    "--keep-mm-feature-on-device": Rule("", "0.5.23 has no such flag", "no"),
}
_ALGORITHMS = {
    "SIMPLE_EAGLE": ("EAGLE", "the fused variant was never merged; EAGLE with the same numbers does its work"),
    "LOOKAHEAD": ("NGRAM", "its name now"),
}
_ENVIRONMENT = {
    "SGLANG_ENABLE_SPEC_V2": "the second version is the only one",
}


def migrate(words: list[str], out: Migration) -> list[str]:
    """The words of the current command line."""
    kept: list[str] = []
    for part in split_off(words, FLAGS):
        if isinstance(part, str):
            name = part.partition("=")[0]
            if name in _ENVIRONMENT:
                out.tell("gone", part, "", _ENVIRONMENT[name])
                continue
            kept.append(part)
            if is_flag(part) and part != "-m":  # of python -m
                out.unchanged.append(plain(part))
            continue
        rule = FLAGS[part.name]
        if not rule.new:
            out.tell("gone", part.text, "", rule.why)
            continue
        words_now = [rule.new] if part.value is None else [rule.new, part.value]
        kept += words_now
        out.tell("renamed", part.text, " ".join(words_now), rule.why)
    return _numbers(_algorithm(kept, out), out)


def _algorithm(words: list[str], out: Migration) -> list[str]:
    for index, word in enumerate(words[:-1]):
        if plain(word) == "--speculative-algorithm" and words[index + 1] in _ALGORITHMS:
            old = words[index + 1]
            new, why = _ALGORITHMS[old]
            out.tell("changed", f"{word} {old}", f"{word} {new}", why)
            words[index + 1] = new
    return words


def _numbers(words: list[str], out: Migration) -> list[str]:
    """All three numbers of a tree or none: SGLang fills in the rest only where none is given."""
    names = ("--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens")
    given = {plain(word): words[index + 1] for index, word in enumerate(words[:-1]) if plain(word) in names}
    if "NGRAM" in words or not given or len(given) == 3 or names[0] not in given:
        return words
    topk = given.get(names[1], "1")
    added = [] if names[1] in given else [names[1], topk]
    if names[2] not in given and topk == "1":
        added += [names[2], str(int(given[names[0]]) + 1)]
    if added:
        out.tell(
            "added", "", " ".join(added), "of steps, topk and draft tokens all are given or none; a chain's are these"
        )
    return words + added
