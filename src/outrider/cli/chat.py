"""``outrider chat``: a conversation on the terminal, or line by line from a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from outrider.cli import options
from outrider.cli.common import check_text, explain, open_llm, print_json, single_config
from outrider.errors import OutriderError, RequestError

if TYPE_CHECKING:
    from outrider.cli.stream import Answer
    from outrider.config import SamplingParams
    from outrider.llm import LLM

HELP = "/quit ends, /new starts over, Ctrl-C stops an answer"


def chat(
    model: options.Model = options.DEFAULT_MODEL,
    method: options.Method = None,
    num_tokens: options.NumTokens = None,
    draft: options.Draft = None,
    speculative_config: options.Config = None,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.Penalty = 1.0,
    seed: options.Seed = 0,
    max_tokens: options.MaxTokens = 512,
    stop: options.Stop = None,
    system: options.System = None,
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    exact: options.Exact = True,
    max_model_len: options.Context = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    show_reasons: options.Explain = False,
    as_json: options.Json = False,
) -> None:
    """Talk with a model; the history is kept. With --json every answer is one JSON document a turn."""
    configs = single_config(method, speculative_config, draft, num_tokens)
    from outrider.config import SamplingParams

    sampling = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        max_tokens=max_tokens,
        stop=stop,
    )
    settings = {"max_model_len": max_model_len, "revision": revision, "trust_remote_code": trust_remote_code}
    with open_llm(model, threads=threads, configs=configs, dtype=dtype, exact=exact, **settings) as llm:
        if not llm.get_tokenizer().has_chat_template:
            raise RequestError(f"{model} has no chat template: use `outrider generate`")
        Conversation(llm, sampling, system, as_json).run()
        explain(llm, show_reasons)


class Conversation:
    """The loop: read a turn, stream the answer, keep both."""

    def __init__(self, llm: LLM, sampling: SamplingParams, system: str | None, as_json: bool = False) -> None:
        self._llm = llm
        self._sampling = sampling
        self._system = system
        self._as_json = as_json
        self._interactive = sys.stdin.isatty()
        self.history: list[dict[str, str]] = []
        self.clear()

    def clear(self) -> None:
        """Start over with the system message alone."""
        self.history = [{"role": "system", "content": self._system}] if self._system else []

    def run(self) -> None:
        """Until /quit or the end of the input."""
        if self._interactive:
            print(HELP, file=sys.stderr)
        while (line := self._read()) is not None:
            match line.strip():
                case "":
                    continue
                case "/quit" | "/exit":
                    return
                case "/new":
                    self.clear()
                    print("new conversation", file=sys.stderr)
                case command if command.startswith("/"):
                    print(f"unknown command {command.split()[0]}: {HELP}", file=sys.stderr)
                case text:
                    self._turn(text)

    def _read(self) -> str | None:
        """The next line, or None at the end of the input. Ctrl-C at the prompt only clears the line."""
        while True:
            try:
                return input("\n> " if self._interactive else "")
            except EOFError:
                return None
            except UnicodeDecodeError:
                raise RequestError("standard input is not UTF-8 text: convert it first, such as with iconv") from None
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                print(file=sys.stderr)

    def _turn(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})
        try:
            check_text(text, "the line")
            answer = self._answer()
        except OutriderError as error:
            self.history.pop()  # the turn cannot be served: the conversation goes on without it
            if not self._interactive:
                raise
            print(f"error: {error}", file=sys.stderr)
            return
        self.history.append({"role": "assistant", "content": answer.text})
        if self._as_json:
            print_json({"text": answer.text, "token_ids": answer.token_ids, "finish_reason": answer.finish_reason})
        else:
            print(f"\n{answer.line()}" if self._interactive else answer.line(), file=sys.stderr)

    def _answer(self) -> Answer:
        import io

        from outrider.cli.stream import play

        chunks = self._llm.stream(messages=list(self.history), sampling_params=self._sampling)
        answer = play(chunks, io.StringIO() if self._as_json else sys.stdout, self._llm.get_tokenizer().decode)
        if not self._as_json:
            print(flush=True)
        return answer
