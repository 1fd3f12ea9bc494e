"""Structured outputs: twenty JSON schemas, each answered plainly and with every method, in turn, in one run.

Valid means that the answer parses and that the `jsonschema` package finds no fault. Speed is tokens after the first per
second that is not prefill; a schema's grammar is compiled before.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import harness
from jsonschema import Draft202012Validator


def thing(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An object with these properties, all required, and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        **more,
    }


def words(most: int) -> dict[str, Any]:
    """A text of at most so many characters."""
    return {"type": "string", "maxLength": most}


def many(items: dict[str, Any], most: int) -> dict[str, Any]:
    """A list of one to ``most``."""
    return {"type": "array", "items": items, "minItems": 1, "maxItems": most}


NUMBER = {"type": "integer", "minimum": 0, "maximum": 9999}
YES = {"type": "boolean"}
ADDRESS = thing({"street": words(24), "city": words(16), "postal_code": {"type": "string", "pattern": "^[0-9]{5}$"}})
SCHEMAS: list[tuple[str, dict[str, Any]]] = [
    ("a person", thing({"first_name": words(12), "last_name": words(12), "age": NUMBER, "email": words(24)})),
    ("a customer with an address", thing({"customer_name": words(20), "address": ADDRESS})),
    ("an order", thing({"order_id": NUMBER, "items": many(thing({"name": words(16), "quantity": NUMBER}), 3)})),
    ("the sentiment of 'I love it'", thing({"sentiment": {"enum": ["positive", "neutral", "negative"]}, "sure": YES})),
    ("a weather report", thing({"city": words(16), "temperature_celsius": NUMBER, "conditions": words(20)})),
    ("a product", thing({"product_name": words(20), "price_in_cents": NUMBER, "available": YES})),
    ("a date", thing({"date": {"type": "string", "pattern": "^20[0-9]{2}-[01][0-9]-[0-3][0-9]$"}, "holiday": YES})),
    ("a recipe", thing({"title": words(20), "ingredients": many(words(16), 4), "minutes": NUMBER})),
    ("a film", thing({"title": words(20), "year": NUMBER, "genres": many({"enum": ["drama", "comedy", "action"]}, 2)})),
    ("a quiz question", thing({"question": words(50), "choices": many(words(12), 4), "answer_index": NUMBER})),
    ("a flight", thing({"departure_airport": words(4), "arrival_airport": words(4), "duration_minutes": NUMBER})),
    (
        "a bug report",
        thing({"severity": {"enum": ["low", "medium", "high"]}, "summary": words(50), "reproducible": YES}),
    ),
    ("a line segment", thing({"start": thing({"x": NUMBER, "y": NUMBER}), "end": thing({"x": NUMBER, "y": NUMBER})})),
    ("a colour", thing({"hexadecimal_code": {"type": "string", "pattern": "^#[0-9a-f]{6}$"}, "name": words(12)})),
    ("an event", thing({"event_name": words(20), "location": words(16), "number_of_attendees": NUMBER})),
    ("a book", thing({"title": words(24), "author": thing({"given_name": words(10), "family_name": words(10)})})),
    ("a server's settings", thing({"host_name": words(16), "port": NUMBER, "encryption_enabled": YES, "debug": YES})),
    ("a translation of 'good day' to French", thing({"source_language": words(10), "translation": words(20)})),
    ("a contact", {"anyOf": [thing({"telephone_number": words(12)}), thing({"electronic_mail": words(24)})]}),
    ("a matrix", thing({"rows": many(many(NUMBER, 3), 3)})),
]


def main() -> int:
    """Run it; the exit status says whether all was valid and equal."""
    parser: Any = harness.parser(__doc__ or "", prompts=False, max_tokens=400)
    parser.add_argument("--methods", type=harness.listed, default=["grammar", "auto"])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    harness.start(args)
    from outrider import LLM, SamplingParams

    ways: list[str] = ["plain", *args.methods]
    engines = {
        way: LLM(
            args.model,
            threads=args.threads,
            speculative_config=None if way == "plain" else {"method": way},
            kv_cache_tokens=args.kv_cache_tokens,
            enable_prefix_caching=False,
        )
        for way in ways
    }
    seconds, tokens, accepted = dict.fromkeys(ways, 0.0), dict.fromkeys(ways, 0), dict.fromkeys(ways, 0)
    valid = equal = total = 0
    for number in range(args.rounds):
        for index, (name, schema) in enumerate(SCHEMAS):
            temperature = (0.0, 0.7, 1.0)[number % 3]
            params = SamplingParams(
                temperature=temperature,
                seed=number,
                max_tokens=args.max_new_tokens,
                structured_outputs={"json": schema},
            )
            texts = {}
            for way in ways[index % len(ways) :] + ways[: index % len(ways)]:
                messages = [{"role": "user", "content": f"Describe {name} as JSON."}]
                output = engines[way].chat(messages, params, use_tqdm=False)[0]
                texts[way] = output.outputs[0].text
                seconds[way] += output.stats.decode_seconds
                tokens[way] += len(output.outputs[0].token_ids) - 1
                accepted[way] += output.stats.num_accepted_draft_tokens
            total += 1
            valid += _valid(texts["plain"], schema)
            equal += len(set(texts.values())) == 1
    rates = {way: tokens[way] / seconds[way] for way in ways}
    for way in ways:
        share = f"{accepted[way] / tokens[way]:.0%} of its tokens drafted"
        print(f"{way:10} {rates[way]:.0f} tokens/s, {rates[way] / rates['plain']:.2f}x plain, {share}")
    print(f"{valid} of {total} answers valid, {equal} of {total} equal under all of {', '.join(ways)}")
    return int(valid < total or equal < total)


def _valid(text: str, schema: dict[str, Any]) -> bool:
    try:
        Draft202012Validator(schema).validate(json.loads(text))
    except Exception as error:
        harness.say(f"not valid: {text!r}: {str(error).splitlines()[0]}")
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())
