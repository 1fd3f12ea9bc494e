"""How the answers to one chat are taken apart."""

from __future__ import annotations

from outrider.config import SamplingParams
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
        """``params`` with which the text holds the markers that are looked for."""
        hidden = self._formats.hidden_markers(with_tools=self._names is not None)
        return params.model_copy(update={"skip_special_tokens": False}) if hidden else params

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
