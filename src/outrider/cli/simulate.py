"""``outrider simulate``: serving on a machine, or under a load, that one does not have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import machine as machines
from outrider.cli import options
from outrider.cli.common import console, parse_methods, print_json
from outrider.errors import ConfigError
from outrider.tables import plain_table

if TYPE_CHECKING:
    from rich.console import Console

    from outrider.simulate.acceptance import Acceptance, Drafts
    from outrider.simulate.costs import CostModel
    from outrider.simulate.sweep import Case, Load, Method, Requests

_WIDE = 110  # columns that the whole table takes
_LOAD, _ENGINE, _ACCEPTANCE = "Load", "Engine", "Speculation"


def simulate(
    costs: Annotated[
        Path | None,
        typer.Option("--costs", metavar="FILE", help="A measured machine (benchmarks/serving/simulated.py)."),
    ] = None,
    gpu: machines.Gpu = None,
    parameters: machines.Parameters = None,
    bytes_per_weight: machines.BytesPerWeight = 2.0,
    layers: machines.Layers = 32,
    heads: machines.Heads = 32,
    kv_heads: machines.KvHeads = 8,
    head_dim: machines.HeadDim = 128,
    experts: machines.Experts = None,
    efficiency: machines.Efficiency = "0.8,0.6",
    num_gpus: Annotated[
        str,
        typer.Option(
            "--num-gpus", metavar="1,2,4", help="Tensor parallel.", rich_help_panel="Machine from a data sheet"
        ),
    ] = "1",
    tp_efficiency: Annotated[
        float,
        typer.Option(
            "--tp-efficiency",
            help="Share of several GPUs' sum that is reached: an assumption.",
            rich_help_panel="Machine from a data sheet",
        ),
    ] = 0.85,
    price: machines.Price = None,
    method: Annotated[
        str,
        typer.Option(
            "--method", metavar="A,B:K", help="`plain`, methods, NAME:K for a fixed K.", rich_help_panel=_ACCEPTANCE
        ),
    ] = "plain",
    rates: Annotated[
        list[str] | None,
        typer.Option(
            "--rates",
            metavar="NAME=A,B,..",
            help="P(position accepted | those before it) of a method; the last one repeats. May be repeated.",
            rich_help_panel=_ACCEPTANCE,
        ),
    ] = None,
    drafts: Annotated[
        Path | None,
        typer.Option("--drafts", metavar="FILE", help="Recorded lengths and drafts.", rich_help_panel=_ACCEPTANCE),
    ] = None,
    draft_parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--draft-parameters",
            metavar="NAME=B",
            help="Billions of weights that a method's draft forward reads (with --gpu); none for a lookup.",
            rich_help_panel=_ACCEPTANCE,
        ),
    ] = None,
    clients: Annotated[
        str | None, typer.Option("--clients", metavar="1,8,32", help="That ask again and again.", rich_help_panel=_LOAD)
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="0.5,2", help="Requests a second (Poisson).", rich_help_panel=_LOAD)
    ] = None,
    num_requests: Annotated[int, typer.Option("--requests", min=1, help="Of each run.", rich_help_panel=_LOAD)] = 128,
    prompt_tokens: Annotated[int, typer.Option("--prompt-tokens", min=1, help="Mean.", rich_help_panel=_LOAD)] = 512,
    output_tokens: Annotated[int, typer.Option("--output-tokens", min=1, help="Mean.", rich_help_panel=_LOAD)] = 128,
    spread: Annotated[
        float,
        typer.Option("--spread", min=0.0, help="Standard deviation of both over their mean.", rich_help_panel=_LOAD),
    ] = 0.5,
    shared_prefix: Annotated[
        int, typer.Option("--shared-prefix", min=0, help="Tokens that all prompts begin with.", rich_help_panel=_LOAD)
    ] = 0,
    seed: options.Seed = 0,
    max_num_seqs: Annotated[
        int, typer.Option("--max-num-seqs", help="Sequences that run at the same time.", min=1, rich_help_panel=_ENGINE)
    ] = 64,
    max_num_batched_tokens: Annotated[
        int, typer.Option("--max-num-batched-tokens", help="Rows of a step.", min=16, rich_help_panel=_ENGINE)
    ] = 512,
    max_model_len: Annotated[
        int, typer.Option("--max-model-len", help="Tokens of a sequence.", min=32, rich_help_panel=_ENGINE)
    ] = 8192,
    kv_cache_tokens: Annotated[
        int | None,
        typer.Option(
            "--kv-cache-tokens", help="Of the cache; else what the memory holds.", min=32, rich_help_panel=_ENGINE
        ),
    ] = None,
    target_tpot_ms: Annotated[
        float | None, typer.Option("--target-tpot-ms", help="Latency that admission keeps to.", rich_help_panel=_ENGINE)
    ] = None,
    prefix_caching: Annotated[
        bool,
        typer.Option("--prefix-caching/--no-prefix-caching", help="Reuse common prefixes.", rich_help_panel=_ENGINE),
    ] = True,
    as_json: options.Json = False,
) -> None:
    """Simulate serving: throughput, latencies, memory and cost over load, method, K and number of GPUs."""
    from outrider.bench.progress import TerminalProgress
    from outrider.simulate import acceptance, sweep, workload
    from outrider.simulate.loop import Settings

    if (costs is None) == (gpu is None):
        raise ConfigError("give either --costs FILE (a measured machine) or --gpu NAME with --parameters")
    loads = _loads(clients, rate)
    methods = _methods(method)
    recorded = None if drafts is None else acceptance.read_drafts(drafts)
    known = _acceptance(recorded, rates or [], seed)
    for each in methods:
        if each.name is not None and each.name not in known:
            raise ConfigError(
                f"--method {each.name}: say how often it is right, with --rates {each.name}=0.7,0.6 or --drafts"
            )
    if recorded is not None:
        requests = _repeated(recorded, num_requests, shared_prefix or recorded.shared, seed)
    else:
        prompts = workload.lengths(prompt_tokens, spread, num_requests, seed)
        outputs = workload.lengths(output_tokens, spread, num_requests, seed + 1)
        requests = sweep.Requests(prompts, outputs, shared_prefix, seed)
    if costs is not None:
        found = _measured(costs, price, num_gpus)
    else:
        shape = (bytes_per_weight, layers, heads, kv_heads, head_dim, experts)
        sizes = _pairs(draft_parameters or [], "--draft-parameters")
        found = _from_sheet(gpu or "", parameters, shape, efficiency, price, num_gpus, tp_efficiency, sizes)
    settings = Settings(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        kv_cache_tokens=kv_cache_tokens,
        enable_prefix_caching=prefix_caching,
        target_tpot_ms=target_tpot_ms,
    )
    cases = sweep.run(requests, loads, methods, found, known, settings, TerminalProgress("simulate"))
    if as_json:
        about: dict[str, Any] = {"costs": None if costs is None else str(costs), "gpu": gpu, "parameters": parameters}
        if gpu:
            about |= {"efficiency": efficiency, "tp_efficiency": tp_efficiency}
        print_json({"machine": about, "runs": [case.as_dict() for case in cases]})
        return
    _show(cases, console(stderr=False))
    if gpu:
        print(f"a roofline, not a measurement: {efficiency} of bandwidth and FLOP/s are taken to be reached", end="")
        print(f", {tp_efficiency:g} of the sum of several GPUs" if num_gpus != "1" else "")
        paid = machines.machine(gpu, efficiency, price).price
        source = "taken from a price list: give yours with --price" if price is None else "as given"
        print(f"a GPU at {paid:g} USD an hour, {source}" if paid else "no price of this GPU is known: give --price")


def _loads(clients: str | None, rate: str | None) -> list[Load]:
    from outrider.simulate.sweep import Load

    if clients is not None and rate is not None:
        raise ConfigError("give either --clients or --rate")
    if rate is not None:
        return [Load(rate=each) for each in machines.numbers(rate, "--rate")]
    return [Load(clients=each) for each in machines.whole_numbers(clients or "1,4,16,64", "--clients")]


def _methods(text: str) -> list[Method]:
    from outrider.drafters.registry import info
    from outrider.simulate.sweep import Method

    out = []
    for variant in parse_methods(text, None):
        if variant.method != "plain":
            info(variant.method)
        out.append(Method(None if variant.method == "plain" else variant.method, variant.num_tokens))
    return out


def _pairs(given: Sequence[str], name: str) -> dict[str, list[float]]:
    out = {}
    for text in given:
        method, equals, values = text.partition("=")
        if not equals:
            raise ConfigError(f"{name} {text!r}: write METHOD=NUMBER, such as eagle3=0.8")
        out[method] = machines.numbers(values, f"{name} {method}=")
    return out


def _acceptance(recorded: Drafts | None, rates: Sequence[str], seed: int) -> dict[str, Acceptance]:
    from outrider.simulate.acceptance import Rates

    out: dict[str, Acceptance] = {} if recorded is None else dict(recorded.methods)
    return out | {name: Rates(name, values, seed=seed) for name, values in _pairs(rates, "--rates").items()}


def _repeated(recorded: Drafts, num_requests: int, shared: int, seed: int) -> Requests:
    """The recorded requests in turn, until there are enough."""
    from outrider.simulate.sweep import Requests

    order = [at % len(recorded.prompts) for at in range(num_requests)]
    return Requests([recorded.prompts[at] for at in order], [recorded.outputs[at] for at in order], shared, seed)


def _measured(path: Path, price: float | None, num_gpus: str) -> Mapping[int, Callable[[], CostModel]]:
    from outrider.simulate.costs import read_costs

    if num_gpus != "1":
        raise ConfigError(f"--num-gpus {num_gpus}: a measured machine is what it is; use --gpu to plan for several")
    costs = read_costs(path, price)
    return {1: lambda: costs}


def _from_sheet(
    gpu: str,
    parameters: float | None,
    shape: tuple[Any, ...],
    efficiency: str,
    price: float | None,
    num_gpus: str,
    tp_efficiency: float,
    sizes: Mapping[str, Sequence[float]],
) -> Mapping[int, Callable[[], CostModel]]:
    from outrider.simulate.costs import RooflineCosts

    if parameters is None:
        raise ConfigError("--gpu needs --parameters: billions of weights, such as 8")
    target = machines.shape(parameters, *shape)
    drafts = {method: machines.shape(values[0], shape[0]) for method, values in sizes.items()}
    one = machines.machine(gpu, efficiency, price)

    def maker(count: int) -> Callable[[], CostModel]:
        return lambda: RooflineCosts(target, one.together(count, tp_efficiency), drafts)

    return {count: maker(count) for count in machines.whole_numbers(num_gpus, "--num-gpus")}


def _show(cases: Sequence[Case], out: Console) -> None:
    wide = out.width >= _WIDE
    several, priced = len({case.num_gpus for case in cases}) > 1, any(case.result.cost for case in cases)
    table = plain_table(padding=2 if wide else 1)
    columns = [
        *(["GPUs"] if several else []),
        "load",
        "method",
        "tokens/s",
        "TTFT s\nP50/P90/P99",
        "TPOT ms\nP50/P90/P99",
    ]
    columns += ["tokens\n/step", *(["fill", "KV mean\n/peak", "busy"] if wide else [])]
    columns += ["USD/M\ntokens"] if priced else []
    for column in columns:
        table.add_column(column, justify="left" if column in ("load", "method") else "right")
    for case in cases:
        result = case.result
        cells = [str(case.num_gpus)] if several else []
        cells += [case.load.label, case.method.label, f"{result.throughput:,.0f}"]
        cells += ["/".join(f"{value:.2f}" for value in result.ttft.values())]
        cells += ["/".join(f"{value:.1f}" for value in result.tpot_ms.values())]
        cells += [f"{result.mean_acceptance_length:.2f}"]
        if wide:
            cells += [f"{result.fill:.0%}", f"{result.kv_share:.0%}/{result.kv_peak:.0%}", f"{result.busy:.0%}"]
        table.add_row(*cells, *([f"{result.cost:.3f}" if result.cost else "-"] if priced else []))
    out.print(table)
    if not wide:
        print(f"left out of a terminal under {_WIDE} columns: fill, KV mean/peak, busy (--json has them)")
    preempted = sum(case.result.preemptions for case in cases)
    if preempted:
        print(f"{preempted} preemptions: the cache is short of blocks")
