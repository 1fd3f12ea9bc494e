"""The table of drafters, and what is refused before any weights load."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from drafters.conformance import CONTEXT, SETTINGS
from outrider.config import SpeculativeConfig, VerifierName
from outrider.core.draft import Delta, Iid
from outrider.core.verifiers import base
from outrider.core.verifiers.registry import VERIFIERS
from outrider.core.verifiers.table import RULES
from outrider.drafters import registry
from outrider.errors import ConfigError

NGRAM = {"method": "ngram"}


def config(**values: Any) -> SpeculativeConfig:
    return SpeculativeConfig(**values)


def test_rows_name_existing_settings_and_their_own_id() -> None:
    for method, row in registry.REGISTRY.items():
        assert row.method == method
        assert set(row.options) <= set(SpeculativeConfig.model_fields)
        assert set(row.required) <= set(row.options)
        assert row.summary
    assert registry.methods() == list(registry.REGISTRY)


@pytest.mark.parametrize("method", ["token_recycling", "lookahead"])
def test_a_method_that_makes_trees_is_refused_by_a_rule_for_chains(method: str) -> None:
    with pytest.raises(ConfigError, match=r"takes chains only; .* makes trees: choose another verifier"):
        registry.check(SpeculativeConfig(method=method, verifier="block"))
    registry.check(SpeculativeConfig(method=method, verifier="rejection"))


def test_every_setting_has_a_reader() -> None:
    read = {option for row in registry.REGISTRY.values() for option in row.options}
    rest = set(SpeculativeConfig.model_fields) - read - set(registry.COMMON_OPTIONS)
    assert rest == {"typical_threshold", "typical_alpha"}


@pytest.mark.parametrize("name", SETTINGS)
def test_build_gives_the_drafter_of_the_method(name: str) -> None:
    drafter = registry.build(config(**SETTINGS[name]), CONTEXT)
    assert drafter.method == SETTINGS[name]["method"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"method": "nosuch"}, r"no drafter is called 'nosuch'; choose one of: ngram, suffix"),
        ({"method": "ngram", "model": "x"}, r"setting model is not used by method 'ngram'; ngram reads: prompt_lookup"),
        ({"method": "prediction", "prompt_lookup_max": 5}, r"prompt_lookup_max is not used .* no setting of its own"),
        ({"method": "ngram", "typical_alpha": 0.3}, r"typical_alpha is not used by verifier 'sample'.*: typical"),
        ({"method": "ngram", "verifier": "threshold", "typical_alpha": 0.3}, "typical_alpha is not used by verifier"),
        ({"method": "synthetic"}, "synthetic_acceptance_rates: method 'synthetic' needs it"),
        ({"method": "draft_model"}, "model: method 'draft_model' needs it"),
        ({"method": "suffix", "verifier": "kseq"}, r"'kseq' takes iid drafts .* delta drafts; choose one of: sample"),
        ({"method": "suffix", "verifier": "block", "suffix_decoding_tree": True}, "suffix_decoding_tree: .* chains"),
        ({"method": "draft_model", "model": "x", "verifier": "block", "tree": [2, 1]}, "tree: .* chains only"),
        ({"method": "draft_model", "model": "x", "verifier": "kseq", "tree": [1, 1]}, "set num_paths instead"),
        ({"method": "draft_model", "model": "x", "tree": [2, 1], "num_paths": 2}, "tree: .* set one of the two"),
        ({"method": "hierarchical", "drafter": {"method": "ngram"}}, "model: method 'hierarchical' needs it"),
        ({"method": "hierarchical", "model": "x"}, "drafter: method 'hierarchical' needs it"),
        ({"method": "hierarchical", "model": "x", "tree": [2], "drafter": {"method": "ngram"}}, "tree is not used by"),
        ({"method": "hierarchical", "model": "x", "drafter": {"method": "draft_model"}}, "method 'draft_model' needs"),
        (
            {"method": "hierarchical", "model": "x", "drafter": {"method": "ngram", "verifier": "rejection"}},
            "verifier: set it beside method 'hierarchical'",
        ),
        ({"method": "draft_model", "model": "x", "drafter": {"method": "ngram"}}, "setting drafter is not used by"),
        ({"method": "merge"}, "drafters: method 'merge' needs it"),
        (
            {"method": "merge", "drafters": [NGRAM], "verifier": "block"},
            "merge makes trees: choose another",
        ),
        ({"method": "merge", "drafters": [NGRAM], "verifier": "kseq"}, "'kseq' takes iid drafts"),
        ({"method": "merge", "drafters": [{"method": "draft_model"}]}, "model: method 'draft_model' needs it"),
        ({"method": "merge", "drafters": [{**NGRAM, "verifier": "block"}]}, "verifier: set it beside method 'merge'"),
        ({"method": "route", "drafters": [NGRAM], "route_tasks": {"code": "suffix"}}, "goes to 'suffix'; .* ngram"),
        ({"method": "auto", "drafters": [NGRAM]}, "drafters is not used by method 'auto'"),
    ],
)
def test_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.check(config(**values))


@pytest.mark.parametrize(
    "values",
    [
        {"method": "ngram", "prompt_lookup_max": 4, "num_speculative_tokens": 3, "model": None},
        {"method": "ngram", "verifier": "typical", "typical_alpha": 0.3, "typical_threshold": 0.1},
        {"method": "suffix", "verifier": "traversal", "suffix_decoding_tree": True},
        {"method": "draft_model", "model": "x", "verifier": "kseq", "num_paths": 4},
        {"method": "draft_model", "model": "x", "verifier": "block", "tree": [1, 1, 1]},
        {"method": "hierarchical", "model": "x", "verifier": "kseq", "drafter": {"method": "suffix"}},
        {
            "method": "hierarchical",
            "model": "x",
            "verifier": "rejection",
            "drafter": {"method": "hierarchical", "model": "y", "drafter": {"method": "draft_model", "model": "z"}},
        },
    ],
)
def test_accepted(values: dict[str, Any]) -> None:
    assert registry.check(config(**values)).method == values["method"]


def test_an_empty_list_of_drafters_is_refused() -> None:
    with pytest.raises(ConfigError, match="drafters"):
        config(method="merge", drafters=[])


def test_members_have_names_of_their_own_unless_they_are_equal() -> None:
    other = {"method": "ngram", "prompt_lookup_max": 3}
    configs = [config(**values) for values in (NGRAM, other, {"method": "suffix"}, NGRAM, other)]
    assert registry.member_names(configs) == ["ngram", "ngram#2", "suffix", "ngram", "ngram#2"]


def test_auto_has_every_drafter_that_needs_no_setting() -> None:
    def found(**values: Any) -> list[str]:
        return [each.method for each in registry.everyone(config(method="auto", **values))]

    assert found()[:5] == ["auto", "prediction", "grammar", "suffix", "ngram"]
    *lookups, head = found()
    assert head == "eagle3"  # where one comes with us for the target
    assert found(model="x") == [*lookups, "draft_model", "ouroboros"]  # of the two, the vocabulary decides
    assert registry.draws(config(method="auto"))


@pytest.mark.parametrize("verifier", get_args(VerifierName))
def test_lookup_drafts_go_with_every_verifier_but_kseq(verifier: VerifierName) -> None:
    for method in ("ngram", "suffix", "prediction"):
        if verifier == "kseq":
            with pytest.raises(ConfigError, match="kseq"):
                registry.check(config(method=method, verifier=verifier))
        else:
            registry.check(config(method=method, verifier=verifier))


def test_laws_of_a_draft_model_follow_the_verifier() -> None:
    row = registry.info("draft_model")
    assert registry.laws_under(row, RULES["sample"]) == ("delta",)
    assert registry.laws_under(row, RULES["rejection"]) == ("iid",)


@pytest.mark.parametrize("verifier", get_args(VerifierName))
@pytest.mark.parametrize(("method", "options"), [("suffix", {"suffix_decoding_tree": True}), ("suffix", {})])
def test_the_verifiers_say_the_same_of_lookup_drafts(verifier: VerifierName, method: str, options: Any) -> None:
    reason = VERIFIERS[verifier].refuse_kind("tree" if options else "chain", [Delta])
    try:
        registry.check(config(method=method, verifier=verifier, **options))
    except ConfigError:
        assert reason is not None
    else:
        assert reason is None


@pytest.mark.parametrize("verifier", get_args(VerifierName))
def test_the_verifiers_say_the_same_of_a_sampling_draft_model(verifier: VerifierName) -> None:
    law = Delta if RULES[verifier].shared_noise else Iid
    registry.check(config(method="draft_model", model="x", verifier=verifier))
    assert VERIFIERS[verifier].refuse_kind("chain", [law]) is None


def test_the_table_of_the_docs_is_that_of_the_rules() -> None:
    rows = [line.split("|")[1:-1] for line in (base.__doc__ or "").splitlines() if line.startswith("| `")]
    assert [row[0].strip(" `") for row in rows] == list(RULES) == list(VERIFIERS) == list(get_args(VerifierName))
    for name, shapes, laws, lossless, _ in rows:
        rule = RULES[name.strip(" `")]
        assert lossless.strip().startswith("yes") == rule.lossless
        assert ("any" in shapes) == (len(rule.shapes) == 3)
        assert ("paths" in shapes) == (rule.merges_paths)
        assert "any" in laws or {law for law in rule.laws if law.replace("_", " ") in laws} == set(rule.laws)
        assert rule.options == () or not rule.lossless
