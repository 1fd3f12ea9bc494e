"""Methods that a model does not allow: an error, or left out with the reason where the caller asks for that."""

from __future__ import annotations

import pytest

from engine.tiny import Models
from outrider import LLM, SamplingParams
from outrider.errors import OutriderError


def test_a_method_that_is_refused_is_left_out_with_its_reason(models: Models) -> None:
    stranger = {"method": "draft_model", "model": models.folders["small draft"], "vocabulary": "same"}
    configs = [{"method": "ngram"}, stranger, {"method": "suffix"}]
    settings = {"dtype": "float32", "threads": 1}
    with pytest.raises(OutriderError) as error:
        LLM(models.folders["target"], speculative_config=configs, **settings)
    llm = LLM(models.folders["target"], speculative_config=configs, skip_refused=True, **settings)
    assert llm.refused == {"draft_model": str(error.value)}
    assert llm.describe()["methods"] == ["ngram", "suffix"]
    assert llm.generate("the abc", SamplingParams(max_tokens=4), use_tqdm=False)[0].finished


def test_a_method_that_the_model_alone_rules_out_is_left_out_as_well(models: Models) -> None:
    configs = [{"method": "layer_skip"}, {"method": "ngram"}]  # nothing was tuned, and nothing says what to skip
    llm = LLM(models.folders["target"], speculative_config=configs, skip_refused=True, dtype="float32", threads=1)
    assert "nothing says what to skip" in llm.refused["layer_skip"]
    assert llm.describe()["methods"] == ["ngram"]


def test_what_no_method_is_to_blame_for_stays_an_error(models: Models) -> None:
    with pytest.raises(OutriderError, match="kv_cache_tokens"):
        LLM(
            models.folders["target"],
            dtype="float32",
            threads=1,
            speculative_config={"method": "ngram"},
            kv_cache_tokens=1,
            skip_refused=True,
        )
