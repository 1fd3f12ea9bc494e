"""The offline entry point: a vLLM example runs unchanged, conversations, defaults, streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.tiny import VARIANTS, Models, ids, same
from outrider import LLM, SamplingParams
from outrider.errors import ModelError, RequestError

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


def test_an_example_of_vllm_runs_unchanged(models: Models) -> None:
    prompts = ["the abc of the", "in the"]
    sampling_params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=8)
    llm = LLM(
        model=models.folders["target"],
        dtype="float32",
        max_model_len=128,
        seed=1,
        speculative_config={"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4},
    )
    outputs = llm.generate(prompts, sampling_params)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.prompt == prompt
        assert output.finished
        assert len(output.outputs[0].token_ids) == 8
        assert output.outputs[0].text
    assert outputs[0].prompt_token_ids == llm.get_tokenizer().encode(prompts[0])


def test_prompts_come_in_every_form(models: Models) -> None:
    llm = models.llm(VARIANTS["ngram"])
    params = SamplingParams(temperature=0.0, max_tokens=6)
    tokens = llm.get_tokenizer().encode("the abc")
    forms = ["the abc", tokens, {"prompt": "the abc"}, {"prompt_token_ids": tokens}]
    answers = [llm.generate(form, params)[0].outputs[0].token_ids for form in forms]
    answers += [output.outputs[0].token_ids for output in llm.generate(forms, [params] * 4)]
    assert answers == [answers[0]] * 8
    assert [output.prompt for output in llm.generate(forms, params)] == ["the abc", None, "the abc", None]


def test_conversations(models: Models) -> None:
    llm = models.fresh()
    messages = [{"role": "user", "content": "the abc"}]
    with pytest.raises(ModelError, match="no chat template"):
        llm.chat(messages)
    llm.get_tokenizer().hf.chat_template = TEMPLATE
    params = SamplingParams(temperature=0.0, max_tokens=5)
    (one,) = llm.chat(messages, params)
    assert one.prompt == "user: the abc\n"
    two = llm.chat([messages, [*messages, {"role": "user", "content": "in"}]], params)
    same(two[0].outputs[0], one.outputs[0])
    assert two[1].prompt == "user: the abc\nuser: in\n"
    text = "".join(chunk.text for chunk in llm.stream(messages=messages, sampling_params=params))
    assert text == one.outputs[0].text


def test_streams_of_several_samples(models: Models) -> None:
    llm = models.llm(VARIANTS["draft_model"])
    params = SamplingParams(n=3, temperature=1.0, max_tokens=9, seed=2)
    chunks = list(llm.stream(ids(8), params))
    want = models.plain(ids(8), params)
    for sample in want.outputs:
        mine = [chunk for chunk in chunks if chunk.index == sample.index]
        assert "".join(chunk.text for chunk in mine) == sample.text
        assert [token for chunk in mine for token in chunk.token_ids] == sample.token_ids
        assert mine[-1].finish_reason == sample.finish_reason


def test_what_is_only_planned_is_not_started(models: Models) -> None:
    llm = models.llm(VARIANTS["ngram"])
    stream = llm.stream("the", SamplingParams(max_tokens=3))
    assert not llm._engine.has_work
    del stream
    with pytest.raises(RequestError):
        llm.generate(["the", ""])
    assert not llm._engine.has_work


def test_the_models_own_defaults_are_used(models: Models, tmp_path: Path) -> None:
    from transformers import GenerationConfig

    folder = models.folders["target"]
    for file in Path(folder).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    GenerationConfig(do_sample=True, temperature=0.3, top_k=7, top_p=0.9, eos_token_id=1).save_pretrained(tmp_path)
    params = LLM(str(tmp_path), dtype="float32").get_default_sampling_params()
    assert (params.temperature, params.top_k, params.top_p, params.max_tokens) == (0.3, 7, 0.9, 16)
    GenerationConfig(do_sample=False, eos_token_id=1).save_pretrained(tmp_path)
    assert LLM(str(tmp_path), dtype="float32").get_default_sampling_params().temperature == 0.0


def test_closing_forgets_what_drafters_learnt(models: Models) -> None:
    params = SamplingParams(max_tokens=12, temperature=0.0)
    with models.fresh(VARIANTS["suffix"]) as llm:
        llm.generate(ids(9), params)
        drafter = llm._engine.drafting.methods["suffix"].drafter
        assert len(drafter.store) == 1  # type: ignore[attr-defined]
    assert len(drafter.store) == 0  # type: ignore[attr-defined]
    llm.generate(ids(9), params)


def test_facts(models: Models) -> None:
    facts = models.llm([VARIANTS["ngram"], VARIANTS["suffix"]], kv_cache_tokens=512).describe()
    assert facts["exact"] is True
    assert facts["methods"] == ["ngram", "suffix"]
    assert facts["kv_cache_tokens"] == 512
    assert facts["threads"] == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_other_formats(models: Models, dtype: str) -> None:
    llm = models.llm(VARIANTS["draft_model"] | {"num_speculative_tokens": 4}, dtype=dtype)
    if not llm.describe()["exact"]:
        pytest.skip(llm.describe()["exact_reason"])
    for temperature in (0.0, 1.0):
        params = SamplingParams(max_tokens=24, temperature=temperature, seed=0, logprobs=2)
        asked = [ids(5), ids(33)]
        for prompt, output in zip(asked, llm.generate(asked, params), strict=True):
            same(output.outputs[0], models.plain(prompt, params, dtype=dtype).outputs[0])


@pytest.mark.parametrize("length", [2, 3, 5, 17, 64, 65])
def test_a_short_context_is_served(length: int, models: Models) -> None:
    llm = LLM(models.folders["target"], dtype="float32", max_model_len=length)  # threads are measured at load
    (output,) = llm.generate([5], SamplingParams(temperature=0.0, max_tokens=80, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == min(80, length - 1)


def test_half_a_character_is_refused(models: Models) -> None:
    with pytest.raises(RequestError, match="no valid Unicode"):
        models.fresh().generate("\udcff", SamplingParams(max_tokens=1))


def test_an_empty_model_name_is_refused() -> None:
    with pytest.raises(ModelError, match="model is empty"):
        LLM("")
