"""A target over two processes: the text of one, with every kind of drafter, seed and temperature."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, Qwen3Config

from engine.tiny import Models, ids
from outrider import LLM, SamplingParams
from outrider.errors import ConfigError, ModelError
from outrider.target.ranks import Ranks
from outrider.target.sharded import own_heads
from processes import python

RUN = """
import json, sys
from pathlib import Path
from outrider import LLM, SamplingParams
folder, methods, cases, out = sys.argv[1:]
llm = LLM(folder, dtype="float32", tensor_parallel_size=2, speculative_config=json.loads(methods), strict=True,
          kv_cache_tokens=112, max_num_seqs=6, max_num_batched_tokens=64)
prompts, params = json.loads(cases)
params = [SamplingParams(**each) for each in params]
answers = [llm.generate(prompts, params, use_tqdm=False) for _ in range(2)]
facts = llm.describe()
Path(out).write_text(json.dumps({
    "tokens": [[output.outputs[0].token_ids for output in each] for each in answers],
    "drafted": [output.stats.num_committed_draft_tokens for output in answers[0]],
    "preemptions": llm._engine.scheduler.num_preemptions,
    "size": facts["tensor_parallel_size"], "exact": facts["exact"], "reason": facts["exact_reason"],
    "heads": llm._engine.target.kv_heads,
}))
"""
METHODS: list[dict[str, Any]] = [
    {"method": "suffix", "suffix_decoding_min_token_prob": 0.0, "suffix_decoding_tree": True},
    {"method": "draft_model", "model": "draft", "tree": [3, 2, 1]},
    {"method": "eagle3", "model": "head:eagle3"},
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


def test_two_processes_say_what_one_says(models: Models, tmp_path: Path) -> None:
    methods = [models._named(method) for method in METHODS]
    prompts, params = [], []
    for number, method in enumerate((None, *(each["method"] for each in METHODS))):
        for temperature in (0.0, 1.0):
            prompts.append(ids(37, seed=number, period=9))
            fixed = {"method": method, "num_speculative_tokens": 5}
            params.append({"temperature": temperature, "seed": number, "max_tokens": 40, "ignore_eos": True,
                           "speculation": {"enabled": False} if method is None else fixed})  # fmt: skip
    out, script = tmp_path / "answers.json", tmp_path / "run.py"
    script.write_text(RUN)
    arguments = [models.folders["target"], json.dumps(methods), json.dumps([prompts, params]), str(out)]
    python([str(script), *arguments], count=2)
    said = json.loads(out.read_text())
    expected = [
        models.plain(prompt, SamplingParams(**given)).outputs[0].token_ids
        for prompt, given in zip(prompts, params, strict=True)
    ]
    assert said["tokens"] == [expected, expected]  # the second time over cached prefixes
    assert said["drafted"][:2] == [0, 0]
    assert all(sum(said["drafted"][first : first + 2]) for first in (2, 4, 6))
    assert said["preemptions"] > 0
    assert (said["size"], said["heads"]) == (2, 1)
    assert (said["exact"], said["reason"]) == (False, "the sums of 2 processes are added in an order of their own")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Not under torchrun."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_without_torchrun_it_says_how_to_start(models: Models, alone: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"tensor_parallel_size=2 needs 2 processes: .*torchrun --nproc-per-node 2"):
        LLM(models.folders["target"], tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="tensor_parallel_size=0"):
        LLM(models.folders["target"], tensor_parallel_size=0)


def test_another_number_of_processes_is_refused(alone: pytest.MonkeyPatch) -> None:
    alone.setenv("RANK", "0")
    alone.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match="tensor_parallel_size=2, and torchrun started 3 processes"):
        Ranks.join(2, torch.device("cpu"))


@pytest.mark.parametrize("method", ["layer_skip", "self_quantized"])
def test_methods_of_the_targets_own_layers_are_refused(method: str, models: Models) -> None:
    config: dict[str, Any] = {"method": method} | ({"exit_layer": 1} if method == "layer_skip" else {})
    with pytest.raises(ConfigError, match=f"method {method}: .*tensor_parallel_size=2 spreads"):
        LLM(models.folders["target"], tensor_parallel_size=2, speculative_config=config)


def test_formats_of_our_own_kernels_are_refused(models: Models) -> None:
    with pytest.raises(ConfigError, match="dtype=int8 with tensor_parallel_size"):
        LLM(models.folders["target"], tensor_parallel_size=2, dtype="int8")


def test_heads_are_divided_or_refused() -> None:
    config = LlamaConfig(hidden_size=96, num_attention_heads=12, num_key_value_heads=6)
    assert [own_heads("m", config, size) for size in (2, 3, 6)] == [3, 2, 1]
    with pytest.raises(ConfigError, match="does not divide the 6 key heads of model='m': possible are 2, 3, 6"):
        own_heads("m", config, 4)
    with pytest.raises(ConfigError, match="leave it out"):
        own_heads("m", Qwen3Config(hidden_size=96, num_attention_heads=3, num_key_value_heads=1), 2)
    with pytest.raises(ModelError, match="no tensor parallel plan for 'gpt2'"):
        own_heads("m", GPT2Config(), 2)
