"""Which formats the served model writes tool calls and reasoning in: named at the start, or read off its template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self, TypeVar

from outrider.errors import ConfigError
from outrider.server.conversation import Function, reads
from outrider.server.parsers.answer import AnswerParser
from outrider.server.parsers.forced import Forcing, quoted
from outrider.server.parsers.hermes import HermesParser
from outrider.server.parsers.llama3_json import Llama3JsonParser
from outrider.server.parsers.mistral import MistralParser
from outrider.server.parsers.pythonic import PythonicParser
from outrider.server.parsers.reasoning import ReasoningParser
from outrider.server.parsers.tools import ToolParser
from outrider.target.tokenizer import Tokenizer

T = TypeVar("T")
AUTO, NONE = "auto", "none"
TOOL_PARSERS: dict[str, type[ToolParser]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3JsonParser,
    "mistral": MistralParser,
    "pythonic": PythonicParser,
}
REASONING_PARSERS: dict[str, tuple[str, str]] = {
    "think": ("<think>", "</think>"),
    "deepseek_r1": ("<think>", "</think>"),
    "qwen3": ("<think>", "</think>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "seed_oss": ("<seed:think>", "</seed:think>"),
}


class Formats:
    """Those of one model. ``tools``: None where it has none that is known; ``reasoning``: its markers, or None."""

    def __init__(self, tokenizer: Tokenizer, tools: type[ToolParser] | None, reasoning: tuple[str, str] | None) -> None:
        self.tools, self.reasoning = tools, reasoning
        self._tokenizer = tokenizer

    @classmethod
    def choose(cls, tokenizer: Tokenizer, tools: str = AUTO, reasoning: str = AUTO) -> Self:
        """By name; ``auto``: what the template shows; ``none``: nothing. Raises ConfigError for other names."""
        template = tokenizer.chat_template
        found = _tools_of(template) if tools == AUTO and reads(tokenizer, "tools") else tools
        thinks = _reasoning_of(template) if reasoning == AUTO else reasoning
        parser = _named("--tool-call-parser", TOOL_PARSERS, NONE if found == AUTO else found)
        return cls(tokenizer, parser, _named("--reasoning-parser", REASONING_PARSERS, thinks))

    def parser(
        self, thinking: bool, names: Sequence[str] | None, *, one_call: bool = False, shows_reasoning: bool = True
    ) -> AnswerParser:
        """A new one for one sample of an answer. ``thinking``: as ``thinks`` says; ``names``: functions that may be
        called; None: tools are not looked for."""
        tools = None if names is None or self.tools is None else self.tools(names)
        return AnswerParser(self._reasoning(thinking), tools, one_call=one_call, shows_reasoning=shows_reasoning)

    def _reasoning(self, thinking: bool) -> ReasoningParser | None:
        return None if self.reasoning is None else ReasoningParser(self.reasoning, thinking)

    def thinks(self, prompt: str, continued: str | None) -> bool:
        """Whether an answer to ``prompt`` begins within reasoning: the prompt ends with its beginning, or the message
        that is ``continued`` has not ended it."""
        if self.reasoning is None:
            return False
        begin, end = self.reasoning
        if continued is not None:
            return continued.rfind(begin) > continued.rfind(end)
        return prompt.rstrip().endswith(begin)

    def hidden_markers(self, with_tools: bool) -> bool:
        """Whether a marker is a special token, so that it would be left out of the text that is parsed."""
        markers = [*(self.reasoning or ()), *(self.tools.markers if with_tools and self.tools is not None else ())]
        return any(self._tokenizer.vocab.get(marker) in self._tokenizer.special_ids for marker in markers)

    def forced(self, functions: Sequence[Function], many: bool) -> str:
        """A grammar of calls of ``functions``; ``many``: of more than one call. Raises RequestError as
        ``ToolParser.grammar`` does."""
        assert self.tools is not None
        tokenizer = self._tokenizer

        def marker(text: str) -> str:
            token = tokenizer.vocab.get(text)
            return f"<[{token}]>" if token in tokenizer.hf.added_tokens_decoder else quoted(text)

        return self.tools.grammar(Forcing(functions, many, marker, tokenizer.chat_template))

    def num_reasoning_tokens(self, thinking: bool, tokens: Sequence[int]) -> int:
        """Tokens of an answer up to the end of its reasoning, the markers included."""
        parser = self._reasoning(thinking)
        if parser is None:
            return 0
        text, count = self._tokenizer.stream(skip_special_tokens=False), 0
        for number, token in enumerate(tokens, start=1):
            before = parser.inside
            parser.feed(text.push(token))
            if before or parser.inside:
                count = number
            elif count:
                break
        return count


def _named(option: str, table: Mapping[str, T], name: str) -> T | None:
    if name == NONE:
        return None
    if name not in table:
        raise ConfigError(f"{option} {name!r}: choose one of {', '.join((AUTO, NONE, *table))}")
    return table[name]


def _tools_of(template: str) -> str:
    """The format that a template with tools asks for."""
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if "<tool_call>" in template and "<function=" not in template:
        return "hermes"
    if "<|python_start|>" in template or "[func_name1(params_name1" in template:
        return "pythonic"
    if "<|python_tag|>" in template or '{"name": function name, "parameters"' in template:
        return "llama3_json"
    return NONE


def _reasoning_of(template: str) -> str:
    pairs = {markers: name for name, markers in reversed(REASONING_PARSERS.items())}
    return next((name for markers, name in pairs.items() if all(marker in template for marker in markers)), NONE)
