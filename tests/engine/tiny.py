"""A tiny random target, draft models with its vocabulary, and a plain engine to compare with.

The head is sharpened and the draft is the target with noise on its weights, so that drafts are accepted often but not
always. Cost curves are replaced by fixed ones: what the planner decides must not depend on the machine in a test.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from drafters.stores import written
from outrider import LLM, SamplingParams
from outrider.config import SpeculativeConfig
from outrider.core.verifiers.registry import VERIFIERS
from outrider.drafters.registry import REGISTRY, check
from outrider.drafters.static_trees import AcceptanceTable
from outrider.errors import ConfigError
from outrider.heads.config import HeadKind
from outrider.outputs import CompletionOutput, RequestOutput
from outrider.target.costs import CostCurve
from outrider.target.pace import LiveCurve
from outrider.target.spelling import Spelling
from outrider.target.tokenizer import Tokenizer as OutriderTokenizer
from outrider.target.vocab import fingerprint
from outrider.train.answers import Sample
from target.vocabularies import finished, merged
from train.tiny import trained

CONTEXT, DRAFT_CONTEXT = 384, 128
EOS = 1
WORDS = ("the", "ab", "abc", " the", " of", "in", "ing")
EMOJI = "ðŁĺĢ"  # the four bytes of a smiley in the byte-level alphabet
FLAT = CostCurve((1, 64), (0.01, 0.0101))  # rows cost next to nothing: all that is drafted is worth verifying
CHEAP = CostCurve((1, 64), (0.0001, 0.000101))


class Fixed(LiveCurve):
    """A drafter's curve that no measurement changes."""

    def observe(self, rows: int, seconds: float) -> None:
        pass


def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level: printable ASCII, the bytes of one emoji, some words, two special tokens."""
    alphabet = ["Ġ" if char == " " else char for char in map(chr, range(32, 127))]
    tokens = ["<s>", "</s>", *alphabet, *EMOJI, *(word.replace(" ", "Ġ") for word in WORDS)]
    backend = Tokenizer(models.BPE(vocab={text: id_ for id_, text in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in tokens[:2]])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


def other_tokenizer() -> PreTrainedTokenizerFast:
    """Another vocabulary: other ids and words, no ``~``, and another name for the end of the text."""
    words = [text.replace(" ", "Ġ") for text in (" the", "ing", "ther", "ab", " o")]
    tokens, merges = merged(words, ["Ġ" if char == " " else char for char in map(chr, range(125, 31, -1))])
    tokens = [*tokens, *EMOJI, "<s>", "<end>"]
    backend = Tokenizer(models.BPE(vocab={text: id_ for id_, text in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return finished(backend, "<s>", "<end>")


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


def translated(model: Any, theirs: PreTrainedTokenizerFast, context: int) -> Any:
    """``model`` for another vocabulary: every token has the rows of the target's token that it begins with."""
    ours = Spelling(OutriderTokenizer(tokenizer()), len(tokenizer()))
    spelled = Spelling(OutriderTokenizer(theirs), len(theirs))
    begins = [ours.first(text) if text else EOS for text in spelled.bytes_of]
    out = noisy(model, model.config.vocab_size, context)
    rows = torch.tensor([EOS if begin is None else begin for begin in begins])
    out.set_input_embeddings(torch.nn.Embedding.from_pretrained(out.get_input_embeddings().weight[rows]))
    out.lm_head.weight = torch.nn.Parameter(out.lm_head.weight[rows])
    out.config.vocab_size, out.config.eos_token_id = len(theirs), theirs.eos_token_id
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
        "other draft": translated(target, other_tokenizer(), DRAFT_CONTEXT),
        "small": tiny,
        "small draft": noisy(tiny, 12, 64, 0.3),
    }
    for name, model in models_.items():
        model.save_pretrained(root / name)
        own = {"small": _small_tokenizer, "other": other_tokenizer}.get(name.split()[0], tokenizer)
        own().save_pretrained(root / name)
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
        self._heads: dict[str, str] = {}

    @cached_property
    def datastore(self) -> str:
        """What the target says to random prompts, as a datastore."""
        llm = self.llm(max_num_seqs=16)
        params = [SamplingParams(max_tokens=40, temperature=float(seed % 2), seed=seed) for seed in range(32)]
        outputs = llm.generate([ids(5, seed) for seed in range(32)], params)
        texts = [output.outputs[0].token_ids for output in outputs]
        name = fingerprint(llm.get_tokenizer())
        return str(written(texts, vocab_size=llm._engine.target.vocab_size, fingerprint=name))

    @cached_property
    def samples(self) -> list[Sample]:
        """What the target says to random prompts, to train heads on."""
        llm = self.llm(max_num_seqs=16)
        params = [SamplingParams(max_tokens=40, temperature=float(seed % 2), seed=seed) for seed in range(64)]
        asked = [ids(9, seed) for seed in range(64)]
        return [
            Sample([*prompt, *output.outputs[0].token_ids], len(prompt), 0.0)
            for prompt, output in zip(asked, llm.generate(asked, params), strict=True)
        ]

    def head(self, name: str) -> str:
        """A head that is trained for a moment: its kind, and ``few`` where it saw only some of the samples."""
        if name not in self._heads:
            kind, _, part = name.partition(" ")
            folder, target = Path(tempfile.mkdtemp()), self.llm(max_num_seqs=16)._engine.target
            samples = self.samples[:16] if part == "few" else self.samples
            self._heads[name] = str(trained(self.folders["target"], target, samples, folder, cast(HeadKind, kind)))
        return self._heads[name]

    def fresh(self, config: Any = None, model: str = "target", **settings: Any) -> LLM:
        """A new engine; ``model`` in ``config`` may name one of the tiny models."""
        configs = [config] if isinstance(config, Mapping) else list(config or ())
        configs = [self._named(config) for config in configs]
        settings = {"dtype": "float32", "threads": 1, "strict": True, **settings}
        llm = LLM(self.folders[model], speculative_config=configs or None, **settings)
        llm._engine.planner.curve = FLAT
        llm._engine.planner._rate.observe = lambda *_: None  # nothing that is timed decides
        llm._engine.planner._meetings.met = lambda *_: None
        for drafter in drafters(llm):
            if hasattr(drafter, "_curve"):
                drafter._curve = Fixed(CHEAP)
            if hasattr(drafter, "_beside"):
                drafter._beside.observe = lambda *_: None
            if engine := getattr(getattr(drafter, "inner", None), "engine", None):
                engine.planner.curve = CHEAP
        return llm

    def _named(self, config: Any) -> Any:
        """``config`` with the folders of the tiny models and datastores that it and its members name."""
        if not isinstance(config, Mapping):
            return self.folders[config]
        out = dict(config)
        if "model" in out:
            name, _, kind = out["model"].partition(":")
            out["model"] = self.head(kind) if name == "head" else self.folders[name]
        if "datastore" in out:
            out["datastore"] = self.datastore
        if "drafter" in out:
            out["drafter"] = self._named(out["drafter"])
        for key in ("models", "drafters"):
            if key in out:
                out[key] = [self._named(member) for member in out[key]]
        return out

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


def drafters(llm: LLM) -> list[Any]:
    """All drafters of an engine, and those that they are made of."""
    return [each for method in llm._engine.drafting.methods.values() for each in _within(method.drafter)]


def _within(drafter: Any) -> list[Any]:
    inner = getattr(drafter, "inner", None)  # an engine within, or a drafter whose tokens are translated
    members = [
        *(getattr(member, "drafter", member) for member in getattr(drafter, "members", ())),
        *([] if inner is None else [inner.method.drafter if hasattr(inner, "engine") else inner]),
    ]
    return [drafter, *(each for member in members for each in _within(member))]


_TABLE = AcceptanceTable("", "", 0.0, [100, 60, 40], [[60, 20, 5], [35, 10, 2], [20, 10, 1]])
_FILE = Path(tempfile.gettempdir()) / "outrider-test-table.json"
_STATIC = {"method": "draft_model", "model": "draft", "tree_kind": "static", "tree_file": str(_FILE), "tree_nodes": 7}
_TABLE.write(_FILE)
_NGRAM = {"method": "ngram", "prompt_lookup_min": 1}
_SUFFIX_TREE = {"method": "suffix", "suffix_decoding_min_token_prob": 0.0, "suffix_decoding_tree": True}
LOOKUPS: list[dict[str, Any]] = [
    {
        "method": "suffix",
        "suffix_decoding_min_token_prob": 0.0,
        "suffix_decoding_max_spec_factor": 4.0,
        "suffix_decoding_tree": True,
    },
    {"method": "ngram", "prompt_lookup_min": 1},
]
DRAFT_MODEL: dict[str, Any] = {"method": "draft_model", "model": "draft"}
_HEADS = [{"method": "eagle3", "model": f"head:{name}"} for name in ("eagle3", "eagle3 few")]  # as of two tasks

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
    "draft_model comb": {"method": "draft_model", "model": "draft", "tree_kind": "comb", "tree_topk": 2},
    "draft_model static": _STATIC,
    "draft_model dynamic": {"method": "draft_model", "model": "draft", "tree_kind": "dynamic", "tree_nodes": 9},
    "draft_model stops": {
        "method": "draft_model",
        "model": "draft",
        "draft_confidence_threshold": 0.4,
        "draft_stop_rejection": 0.7,
    },
    "specinfer": {"method": "specinfer", "models": ["draft", {"model": "long draft", "draft_dtype": "float32"}]},
    "specinfer tree": {"method": "specinfer", "models": ["draft", "long draft"], "tree": [2, 1, 1]},
    "specinfer dynamic": {"method": "specinfer", "models": ["draft", "long draft"], "tree_kind": "dynamic"},
    "spectr": {"method": "spectr", "model": "draft", "verifier": "sample", "num_paths": 3},
    "eagle3": {"method": "eagle3", "model": "head:eagle3"},
    "eagle3 tree": {"method": "eagle3", "model": "head:eagle3", "tree": [3, 2, 1]},
    "eagle3 dynamic": {"method": "eagle3", "model": "head:eagle3", "tree_kind": "dynamic", "tree_nodes": 9},
    "eagle3 sharper": {"method": "eagle3", "model": "head:eagle3", "draft_temperature": 0.6},
    "eagle": {"method": "eagle", "model": "head:eagle"},
    "eagle2": {"method": "eagle2", "model": "head:eagle", "tree_nodes": 9},
    "mtp": {"method": "mtp", "model": "head:mtp"},
    "medusa": {"method": "medusa", "model": "head:medusa"},
    "medusa static": {**_STATIC, "method": "medusa", "model": "head:medusa"},
    "hydra": {"method": "hydra", "model": "head:hydra"},
    "hydra flatter": {"method": "hydra", "model": "head:hydra", "tree": [3, 2], "draft_temperature": 1.5},
    "hydra tree": {"method": "hydra", "model": "head:hydra", "tree": [3, 2, 1]},
    "hydra dynamic": {"method": "hydra", "model": "head:hydra", "tree_kind": "dynamic", "tree_nodes": 9},
    "hydra_plus": {"method": "hydra_plus", "model": "head:hydra_plus"},
    "hydra_plus tree": {"method": "hydra_plus", "model": "head:hydra_plus", "tree": [3, 2, 1]},
    "draft_model long": {"method": "draft_model", "model": "long draft"},
    "token_recycling": {"method": "token_recycling"},
    "token_recycling widths": {"method": "token_recycling", "token_recycling_topk": 3, "tree": [3, 2, 1]},
    "lookahead": {"method": "lookahead"},
    "lookahead window": {
        "method": "lookahead",
        "lookahead_window": 7,
        "lookahead_ngram": 3,
        "lookahead_guesses": 4,
        "lookahead_pool_from_prompt": False,
    },
    "ouroboros": {"method": "ouroboros", "model": "draft"},
    "ouroboros long": {
        "method": "ouroboros",
        "model": "long draft",
        "ouroboros_phrases": 2,
        "ouroboros_ngram": 3,
        "ouroboros_keep_pool": False,
    },
    "layer_skip": {"method": "layer_skip", "skip_mlp_layers": [0], "draft_stop_threshold": 0.0},
    "layer_skip exit": {"method": "layer_skip", "exit_layer": 1},
    "self_quantized": {"method": "self_quantized"},
    "hierarchical": {"method": "hierarchical", "model": "draft", "drafter": _NGRAM},
    "hierarchical tree": {"method": "hierarchical", "model": "long draft", "drafter": _SUFFIX_TREE},
    "hierarchical models": {
        "method": "hierarchical",
        "model": "draft",
        "drafter": {"method": "draft_model", "model": "long draft", "tree": [2, 1]},
    },
    "hierarchical of 3": {
        "method": "hierarchical",
        "model": "draft",
        "drafter": {"method": "hierarchical", "model": "long draft", "drafter": _NGRAM},
    },
    "draft_model tli": {"method": "draft_model", "model": "other draft", "vocabulary": "tli"},
    "draft_model tli tree": {"method": "draft_model", "model": "other draft", "vocabulary": "tli", "tree": [3, 2, 1]},
    "draft_model tli paths": {"method": "draft_model", "model": "other draft", "vocabulary": "tli", "num_paths": 3},
    "draft_model slem": {"method": "draft_model", "model": "other draft", "vocabulary": "slem"},
    "draft_model slem tree": {"method": "draft_model", "model": "other draft", "vocabulary": "slem", "tree": [3, 2, 1]},
    "merge": {"method": "merge", "drafters": [*LOOKUPS, DRAFT_MODEL]},
    "merge of lookups": {"method": "merge", "drafters": LOOKUPS},
    "merge of draft models": {"method": "merge", "drafters": [DRAFT_MODEL, {**DRAFT_MODEL, "model": "long draft"}]},
    "merge of heads": {"method": "merge", "drafters": [*_HEADS, {"method": "hydra", "model": "head:hydra"}]},
    "route of heads": {"method": "route", "drafters": _HEADS},
    "route": {"method": "route", "drafters": [LOOKUPS[1], DRAFT_MODEL]},
    "route tree": {"method": "route", "drafters": [*LOOKUPS, {"method": "merge", "drafters": [*LOOKUPS, DRAFT_MODEL]}]},
    "route bandit": {"method": "route", "route_by": "bandit", "drafters": [*LOOKUPS, DRAFT_MODEL]},
    "auto": {"method": "auto"},
    "auto with a model": {"method": "auto", "model": "draft"},
    "synthetic": {"method": "synthetic", "synthetic_acceptance_rates": [0.9, 0.8, 0.7, 0.6]},
}
VARIANTS |= {
    row.method: {"method": row.method}
    for row in REGISTRY.values()
    if not (row.required or any(value["method"] == row.method for value in VARIANTS.values()))
}


ASKS: dict[str, dict[str, Any]] = {  # what requests must ask for, for a variant to draft
    "grammar": {"structured_outputs": {"regex": "( (of|the|ab ab|cd cd cd))+"}},
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
    assert engine.scheduler.pool.num_held == 0
    for drafter in drafters(llm):
        for states in ("_states", "_features", "_mirrors", "_following", "_episodes", "_used"):
            assert not getattr(drafter, states, {})
        pool = getattr(drafter, "pool", None)
        assert pool is None or pool.num_held == 0
        if hasattr(getattr(drafter, "inner", None), "engine"):
            assert not drafter.inner._twins
            assert not drafter.inner.engine.planner.calibration._own
    assert not engine.planner.calibration._own
    assert not engine.planner._waited


def prompts(lengths: Sequence[int]) -> list[list[int]]:
    """One prompt a length; every other one repeats itself."""
    return [ids(length, seed=length, period=7 if index % 2 else 0) for index, length in enumerate(lengths)]
