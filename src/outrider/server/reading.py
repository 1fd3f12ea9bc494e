"""How the answers to one chat are taken apart."""

from __future__ import annotations

from typing import Any

from outrider.config import SamplingParams, StructuredOutputs
from outrider.errors import RequestError
from outrider.outputs import RequestOutput
from outrider.server.parsers.answer import AnswerParser
from outrider.server.parsers.formats import Formats
from outrider.server.schemas import ChatRequest


class Reading:
    """Of a chat whose prompt is ``prompt``. Raises RequestError when it has tools whose calls could not be read."""

    def __init__(self, formats: Formats, body: ChatRequest, prompt: str) -> None:
        if body.offered and formats.tools is None:
            raise RequestError(
                "tools: it is not known how this model writes its calls: start the server with --tool-call-parser"
            )
        self._formats, self._body = formats, body
        self._thinking = formats.thinks(prompt, body.messages[-1].text if body.continue_final_message else None)
        self._names = [tool.function.name for tool in body.offered] or None

    def params(self, params: SamplingParams) -> SamplingParams:
        """``params`` with which the text holds the markers that are looked for, and the calls that are forced; what a
        structured output must be begins behind the reasoning."""
        changed: dict[str, Any] = {}
        if self._formats.hidden_markers(with_tools=self._names is not None):
            changed["skip_special_tokens"] = False
        wanted = self._structured(params.structured_outputs)
        if wanted is not None and wanted.after is None and self._thinking and self._formats.reasoning is not None:
            wanted = wanted.model_copy(update={"after": self._formats.reasoning[1]})
        return params.model_copy(update={**changed, "structured_outputs": wanted})

    def _structured(self, given: StructuredOutputs | None) -> StructuredOutputs | None:
        body = self._body
        if given is not None and body.offered:
            raise RequestError(
                "tools and a structured output are asked for together: leave out one, or set tool_choice to none"
            )
        if not body.forced:
            return given
        many = body.tool_choice == "required" and body.parallel_tool_calls is not False
        return StructuredOutputs(grammar=self._formats.forced([tool.function for tool in body.forced], many))

    def parser(self) -> AnswerParser:
        """A new one for one sample."""
        return self._formats.parser(
            self._thinking,
            self._names,
            one_call=self._body.parallel_tool_calls is False,
            shows_reasoning=self._body.include_reasoning,
        )

    def details(self, output: RequestOutput) -> dict[str, int]:
        """What ``usage`` says of the reasoning."""
        if self._formats.reasoning is None:
            return {}
        counts = [self._formats.num_reasoning_tokens(self._thinking, each.token_ids) for each in output.outputs]
        return {"reasoning_tokens": sum(counts)}
