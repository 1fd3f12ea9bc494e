"""A tiny random target, draft models with its vocabulary, and a plain engine to compare with.

The head is sharpened and the draft is the target with noise on its weights, so that drafts are accepted often but not
always. Cost curves are replaced by fixed ones: what the planner decides must not depend on the machine in a test.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from drafters.stores import written
from outrider import LLM, SamplingParams
from outrider.config import SpeculativeConfig
from outrider.core.verifiers.registry import VERIFIERS
from outrider.drafters.registry import REGISTRY, check
from outrider.errors import ConfigError
from outrider.outputs import CompletionOutput, RequestOutput
from outrider.target.costs import CostCurve
from outrider.target.vocab import fingerprint

CONTEXT, DRAFT_CONTEXT = 384, 128
EOS = 1
WORDS = ("the", "ab", "abc", " the", " of", "in", "ing")
EMOJI = "ðŁĺĢ"  # the four bytes of a smiley in the byte-level alphabet
FLAT = CostCurve((1, 64), (0.01, 0.0101))  # rows cost next to nothing: all that is drafted is worth verifying
CHEAP = CostCurve((1, 64), (0.0001, 0.000101))


def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level: printable ASCII, the bytes of one emoji, some words, two special tokens."""
    alphabet = ["Ġ" if char == " " else char for char in map(chr, range(32, 127))]
    tokens = ["<s>", "</s>", *alphabet, *EMOJI, *(word.replace(" ", "Ġ") for word in WORDS)]
    backend = Tokenizer(models.BPE(vocab={text: id_ for id_, text in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in tokens[:2]])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


def network(vocab_size: int, context: int, seed: int = 0, sharpness: float = 2.5) -> Any:
    """A Llama of two layers."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=EOS,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).eval()
    model.lm_head.weight.data *= sharpness / (0.3 * 32**0.5)
    return model


def noisy(model: Any, vocab_size: int, context: int, amount: float = 0.02) -> Any:
    """``model`` with noise on its weights, another vocabulary padding and another context."""
    out = network(vocab_size, context)
    torch.manual_seed(9)
    for mine, theirs in zip(out.parameters(), copy.deepcopy(model).parameters(), strict=True):
        rows = min(mine.shape[0], theirs.shape[0])
        mine.data[:rows] = theirs.data[:rows] + amount * theirs.data.std() * torch.randn(theirs.data[:rows].shape)
    return out


@cache
def folders(root: Path) -> dict[str, str]:
    """Model folders under ``root``: target, draft, small (a vocabulary of 12 for statistics) and its draft."""
    words = tokenizer()
    size = len(words) + 4  # embeddings are padded, and the padding can be drawn
    target = network(size, CONTEXT)
    tiny = network(12, 64, seed=3, sharpness=1.5)
    models_ = {
        "target": target,
        "draft": noisy(target, len(words), DRAFT_CONTEXT),
        "long draft": noisy(target, size + 8, 4 * CONTEXT, 0.1),
        "small": tiny,
        "small draft": noisy(tiny, 12, 64, 0.3),
    }
    for name, model in models_.items():
        model.save_pretrained(root / name)
        (_small_tokenizer() if name.startswith("small") else words).save_pretrained(root / name)
    return {name: str(root / name) for name in models_}


def _small_tokenizer() -> PreTrainedTokenizerFast:
    vocab = {text: id_ for id_, text in enumerate(["<s>", "</s>", *"abcdefghij"])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ("<s>", "</s>")])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


class Models:
    """Opens engines over the tiny models; equal settings get the same engine."""

    def __init__(self, root: Path) -> None:
        self.folders = folders(root)
        self._open: dict[str, LLM] = {}

    @cached_property
    def datastore(self) -> str:
        """What the target says to random prompts, as a datastore."""
        llm = self.llm(max_num_seqs=16)
        params = [SamplingParams(max_tokens=40, temperature=float(seed % 2), seed=seed) for seed in range(32)]
        outputs = llm.generate([ids(5, seed) for seed in range(32)], params)
        texts = [output.outputs[0].token_ids for output in outputs]
        name = fingerprint(llm.get_tokenizer())
        return str(written(texts, vocab_size=llm._engine.target.vocab_size, fingerprint=name))

    def fresh(self, config: Any = None, model: str = "target", **settings: Any) -> LLM:
        """A new engine; ``model`` in ``config`` may name one of the tiny models."""
        configs = [config] if isinstance(config, Mapping) else list(config or ())
        configs = [{**c, "model": self.folders[c["model"]]} if "model" in c else c for c in configs]
        configs = [{**c, "datastore": self.datastore} if "datastore" in c else c for c in configs]
        settings = {"dtype": "float32", "threads": 1, "strict": True, **settings}
        llm = LLM(self.folders[model], speculative_config=configs or None, **settings)
        llm._engine.planner.curve = FLAT
        for method in llm._engine.drafting.methods.values():
            if hasattr(method.drafter, "_curve"):
                method.drafter._curve = CHEAP
        return llm

    def llm(self, config: Any = None, model: str = "target", **settings: Any) -> LLM:
        """An engine that tests share."""
        key = repr((config, model, sorted(settings.items())))
        if key not in self._open:
            self._open[key] = self.fresh(config, model, **settings)
        return self._open[key]

    def plain(self, prompt: Any, params: SamplingParams, model: str = "target", **settings: Any) -> RequestOutput:
        """The answer of plain decoding, alone, without a prefix cache."""
        llm = self.llm(None, model, max_num_seqs=1, enable_prefix_caching=False, **settings)
        return llm.generate(prompt, params.model_copy(update={"speculation": None}))[0]


# Options of every method; several entries a method where shapes or laws differ.
VARIANTS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "prompt_lookup_min": 1},
    "suffix": {"method": "suffix", "suffix_decoding_min_token_prob": 0.0, "suffix_decoding_max_spec_factor": 4.0},
    "suffix tree": {
        "method": "suffix",
        "suffix_decoding_min_token_prob": 0.0,
        "suffix_decoding_max_spec_factor": 4.0,
        "suffix_decoding_tree": True,
    },
    "rest": {"method": "rest", "datastore": "answers", "rest_tree": False},
    "rest tree": {"method": "rest", "datastore": "answers"},
    "prediction": {"method": "prediction"},
    "draft_model": {"method": "draft_model", "model": "draft"},
    "draft_model tree": {"method": "draft_model", "model": "draft", "tree": [3, 2, 1]},
    "draft_model paths": {"method": "draft_model", "model": "draft", "num_paths": 3},
    "draft_model long": {"method": "draft_model", "model": "long draft"},
    "synthetic": {"method": "synthetic", "synthetic_acceptance_rates": [0.9, 0.8, 0.7, 0.6]},
}


def fitting(config: Mapping[str, Any]) -> list[str]:
    """Verifiers that take what a method makes, the default one first."""
    out = []
    for name in VERIFIERS:
        try:
            check(SpeculativeConfig(**{**config, "verifier": name}))
        except ConfigError:
            continue
        out.append(name)
    return out


def covered_methods() -> set[str]:
    """Methods that ``VARIANTS`` covers; must be all of the registry's."""
    assert {config["method"] for config in VARIANTS.values()} == set(REGISTRY)
    return set(REGISTRY)


def ids(count: int, seed: int = 0, period: int = 0) -> list[int]:
    """A random prompt of ``count`` tokens, repeating every ``period`` tokens where that is not 0."""
    if not count:
        return []
    drawn = torch.randint(2, 100, (period or count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return (drawn * (-(-count // len(drawn))))[:count]


def same(left: CompletionOutput, right: CompletionOutput) -> None:
    """Everything but ``from_draft`` is equal, logprobs to the last bit."""
    assert left.token_ids == right.token_ids
    assert left.text == right.text
    assert left.logprobs == right.logprobs
    assert left.cumulative_logprob == right.cumulative_logprob
    assert (left.finish_reason, left.stop_reason) == (right.finish_reason, right.stop_reason)


def consistent(output: RequestOutput, prompts_first: bool = True) -> None:
    """The counters of a request add up."""
    stats = output.stats
    total = sum(len(sample.token_ids) for sample in output.outputs)
    assert stats.num_first_tokens + stats.num_committed_tokens == total == stats.num_completion_tokens
    assert stats.num_committed_draft_tokens == sum(sum(sample.from_draft) for sample in output.outputs)
    assert all(len(sample.from_draft) == len(sample.token_ids) for sample in output.outputs)
    assert not any(sample.from_draft[0] for sample in output.outputs if sample.from_draft)
    assert stats.num_draft_tokens >= stats.num_accepted_draft_tokens >= stats.num_committed_draft_tokens


def idle(llm: LLM) -> None:
    """Nothing is held: no sequence, no block, no drafter state."""
    engine = llm._engine
    assert not engine.scheduler.running
    assert not engine.scheduler.waiting
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_blocks
    for method in engine.drafting.methods.values():
        assert not getattr(method.drafter, "_states", {})
        pool = getattr(method.drafter, "pool", None)
        assert pool is None or pool.num_free == pool.num_blocks
    assert not engine.planner.calibration._own
    assert not engine.planner._waited


def prompts(lengths: Sequence[int]) -> list[list[int]]:
    """One prompt a length; every other one repeats itself."""
    return [ids(length, seed=length, period=7 if index % 2 else 0) for index, length in enumerate(lengths)]
