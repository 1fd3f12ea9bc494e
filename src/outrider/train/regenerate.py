"""Stage one: the target itself answers the training prompts, through the chat template it is served with.

A head learns what the target will say, so that the prompts' own answers, by people or by other models, are of no use.
Each prompt has a seed and a temperature of its own: its answer depends on nothing else, so that a run that was stopped
and resumed writes the same file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.bench.data import Prompt
from outrider.config import SamplingParams
from outrider.llm import LLM
from outrider.train.answers import Answered, AnswerFile, Sample

Progress = Callable[[int, int], None]  # done, total
GROUP = 256  # prompts that are answered between two writes


@dataclass(frozen=True, slots=True)
class Sampling:
    """How answers are drawn: prompt number i takes ``temperatures[i % len]``. ``max_tokens``: of one answer."""

    temperatures: Sequence[float] = (0.0, 0.7, 0.0, 1.0)
    max_tokens: int = 256
    seed: int = 0

    def params(self, index: int, turn: int) -> SamplingParams:
        """Of one turn of prompt number ``index``."""
        temperature = self.temperatures[index % len(self.temperatures)]
        seed = self.seed * 1_000_003 + index * 16 + turn
        return SamplingParams(temperature=temperature, max_tokens=self.max_tokens, seed=seed, detokenize=False)


def regenerate(
    llm: LLM,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    file: AnswerFile,
    progress: Progress,
    group: int | None = None,
) -> int:
    """Answer the prompts that ``file`` lacks; returns how many were too long for the model's context."""
    done, skipped, group = file.repair(), 0, group or GROUP
    progress(done, len(prompts))
    while done < len(prompts):
        answered = _answer(llm, prompts[done : done + group], done, sampling)
        skipped += sum(not one.samples for one in answered)
        file.append(answered)
        done += len(answered)
        progress(done, len(prompts))
    return skipped


def _answer(llm: LLM, prompts: Sequence[Prompt], first: int, sampling: Sampling) -> list[Answered]:
    """All turns of ``prompts``, which are number ``first`` and on, turn by turn over the whole group."""
    tokenizer = llm.get_tokenizer()
    talks: list[list[dict[str, str]]] = [[] for _ in prompts]
    samples: list[list[Sample]] = [[] for _ in prompts]
    live = list(range(len(prompts)))
    turn = 0
    while live := [place for place in live if turn < len(prompts[place].turns)]:
        asked, tokens = [], []
        for place in live:
            talk = [*talks[place], {"role": "user", "content": prompts[place].turns[turn]}]
            ids = tokenizer.encode_chat(talk)
            if len(ids) >= llm.max_model_len:  # and so are the turns behind it
                continue
            talks[place] = talk
            asked.append(place)
            tokens.append(ids)
        params = [sampling.params(first + place, turn) for place in asked]
        for place, ids, param, output in zip(asked, tokens, params, llm.generate(tokens, params, False), strict=True):
            answer = output.outputs[0].token_ids
            samples[place].append(Sample([*ids, *answer], len(ids), param.temperature))
            talks[place].append({"role": "assistant", "content": tokenizer.decode(answer, skip_special_tokens=True)})
        live, turn = asked, turn + 1
    return [Answered(prompt.prompt_id, prompt.task, found) for prompt, found in zip(prompts, samples, strict=True)]
