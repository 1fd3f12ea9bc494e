"""A server whose model writes what a test wants: the tokens are the tiny target's, the text is a script."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.engine.text import OutputText
from outrider.llm import LLM

HERMES = (
    "{% if tools %}tools {% for tool in tools %}{{ tool.function.name }} {% endfor %}"
    '<tool_call>{"name": ..., "arguments": ...}</tool_call> {% endif %}'
    "{% for message in messages %}{{ message.role }} {{ message.content }} "
    "{% for call in message.tool_calls or [] %}{{ call.function.arguments | tojson }} {% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}assistant{% if thinking %} <think>{% endif %}{% endif %}"
)


class Script(OutputText):
    """``text``, ``size`` characters a token; at its end the sequence stops."""

    def __init__(self, text: str, size: int) -> None:
        super().__init__(None, (), ())
        self._script, self._size = text, size

    def push(self, token: int, *, stoppable: bool = True) -> str | None:
        """The next characters."""
        end = len(self.text) + self._size
        self.text = self._script[:end]
        return "" if end >= len(self._script) else None


def scripted(llm: LLM, texts: Sequence[str], size: int = 4) -> LLM:
    """An engine whose requests get ``texts`` one after the other, the last one from then on."""
    make, left = llm.request, list(texts)

    def request(*args: Any, **more: Any) -> Any:
        made = make(*args, **more)
        text = left.pop(0) if len(left) > 1 else left[0]
        for seq in made.sequences:
            seq.text, seq.end_ids = Script(text, size), frozenset()
        return made

    llm.request = request  # type: ignore[method-assign]
    return llm


def with_template(folder: str, copy: Path, template: str = HERMES) -> str:
    """A copy of a model with another chat template, and with a line break in the place of a tilde."""
    shutil.copytree(folder, copy)
    (copy / "chat_template.jinja").write_text(template)
    spelled = (copy / "tokenizer.json").read_text(encoding="utf-8")
    (copy / "tokenizer.json").write_text(spelled.replace('"~"', '"Ċ"'), encoding="utf-8")
    return str(copy)
