"""``outrider serve``: a model behind OpenAI's API."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from outrider.cli import options, replicas
from outrider.cli.common import explain, open_llm, single_config
from outrider.errors import ConfigError
from outrider.server.records import Records

if TYPE_CHECKING:
    from outrider.config import SpeculativeConfig
    from outrider.llm import LLM
    from outrider.train.online import Distiller

_PANEL = "Server"


def serve(
    model: options.Model = options.DEFAULT_MODEL,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.", rich_help_panel=_PANEL)] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one.", rich_help_panel=_PANEL)
    ] = 8000,
    served_model_name: Annotated[
        str | None,
        typer.Option(
            "--served-model-name", metavar="NAME", help="What clients call the model.", rich_help_panel=_PANEL
        ),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key",
            metavar="KEY",
            envvar="OUTRIDER_API_KEY",
            help="Let in who sends this key; may be repeated. Cached prefixes are not shared between keys.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    metrics_prefix: options.MetricsPrefix = "outrider:",
    request_metrics: Annotated[
        Literal["none", "summary", "detailed"],
        typer.Option(
            "--per-request-spec-decode-metrics",
            metavar="LEVEL",
            help="What answers say of their acceptance where requests leave it open: none, summary or detailed.",
            rich_help_panel=_PANEL,
        ),
    ] = "none",
    request_log: Annotated[
        Path | None,
        typer.Option(
            "--request-log",
            metavar="FILE",
            help="Append a line of JSON for every call: route, status, tokens, acceptance, seconds.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    request_log_text: Annotated[
        bool,
        typer.Option(
            "--request-log-text", help="With --request-log: prompts and answers as well.", rich_help_panel=_PANEL
        ),
    ] = False,
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(
            "--otlp-endpoint",
            metavar="URL",
            envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
            help="Send OpenTelemetry spans and metrics to this collector (OTLP over HTTP).",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    tool_call_parser: Annotated[
        str,
        typer.Option(
            "--tool-call-parser",
            metavar="NAME",
            help="How the model writes tool calls: hermes, llama3_json, mistral, pythonic or none; auto: as its "
            "chat template shows.",
            rich_help_panel=_PANEL,
        ),
    ] = "auto",
    reasoning_parser: Annotated[
        str,
        typer.Option(
            "--reasoning-parser",
            metavar="NAME",
            help="How the model marks its reasoning: think, mistral, seed_oss or none; auto: as its chat template "
            "shows.",
            rich_help_panel=_PANEL,
        ),
    ] = "auto",
    max_waiting: Annotated[
        int, typer.Option("--max-waiting", min=1, help="Requests that may queue; more get 429.", rich_help_panel=_PANEL)
    ] = 512,
    max_request_bytes: Annotated[
        int, typer.Option("--max-request-bytes", min=1, help="Longest body; more get 413.", rich_help_panel=_PANEL)
    ] = 8 * 2**20,
    max_num_seqs: Annotated[
        int, typer.Option("--max-num-seqs", min=1, help="Sequences that run at the same time.", rich_help_panel=_PANEL)
    ] = 32,
    target_tpot_ms: Annotated[
        float | None,
        typer.Option(
            "--target-tpot-ms",
            metavar="MS",
            help="Milliseconds per token that running requests are to keep; others wait while they do not.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    drain_seconds: Annotated[
        float,
        typer.Option(
            "--drain-seconds",
            min=0.0,
            help="After SIGTERM or Ctrl-C, how long running requests may go on.",
            rich_help_panel=_PANEL,
        ),
    ] = 30.0,
    distill: Annotated[
        Path | None,
        typer.Option(
            "--distill",
            metavar="FOLDER",
            help="Let the head go on learning from what it drafts for, in a process of its own; keeps texts there.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    kv_cache_tokens: Annotated[
        int | None,
        typer.Option(
            "--kv-cache-tokens",
            min=16,
            help="Size of the cache; without it a quarter of the free memory.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    pages: Annotated[
        bool,
        typer.Option("--pages/--no-pages", help="The playground and the dashboard.", rich_help_panel=_PANEL),
    ] = True,
    num_replicas: replicas.Replicas = None,
    autoscale: replicas.Autoscale = None,
    method: options.Method = None,
    num_tokens: options.NumTokens = None,
    draft: options.Draft = None,
    speculative_config: options.Config = None,
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    exact: options.Exact = True,
    max_model_len: options.Context = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    tensor_parallel_size: options.TensorParallel = 1,
    show_reasons: options.Explain = False,
) -> None:
    """Serve a model to OpenAI clients. Speculation is `auto` unless another is named; `--method plain` is none."""
    try:
        import uvicorn

        from outrider.server.app import create_app
        from outrider.server.runner import Runner
        from outrider.server.service import ServerSettings
        from outrider.server.serving import DrainingServer, bind, url
    except ImportError as error:
        raise ConfigError(f"outrider serve needs {error.name}: pip install 'outrider[serve]'") from None
    options.check_metrics_prefix(metrics_prefix)
    if method != "plain":
        named = method or speculative_config or draft
        configs = with_prediction(single_config(method if named else "auto", speculative_config, draft, num_tokens))
    elif speculative_config or draft or num_tokens is not None:
        raise ConfigError(
            "--method plain takes no --speculative-config, --draft or -k: leave them out, or name a method"
        )
    else:
        configs = []
    settings: dict[str, Any] = {"max_model_len": max_model_len, "revision": revision}
    settings |= {"trust_remote_code": trust_remote_code, "tensor_parallel_size": tensor_parallel_size}
    settings |= {"max_num_seqs": max_num_seqs, "kv_cache_tokens": kv_cache_tokens, "target_tpot_ms": target_tpot_ms}
    served_as = ServerSettings(
        served_model_name or model,
        tuple(api_key or ()),
        metrics_prefix=metrics_prefix,
        request_metrics=request_metrics,
        max_request_bytes=max_request_bytes,
        pages=pages,
        tool_call_parser=tool_call_parser,
        reasoning_parser=reasoning_parser,
    )
    with ExitStack() as stack:
        records = Records(stack, request_log, request_log_text, otlp_endpoint)
        if num_replicas is not None or autoscale is not None:
            if distill is not None:
                raise ConfigError("--distill trains one engine's head: leave it out with --replicas and --autoscale")
            if show_reasons:
                raise ConfigError("--explain tells of one engine: leave it out with --replicas and --autoscale")
            if tensor_parallel_size > 1:
                raise ConfigError("--tensor-parallel-size spreads one engine: leave out --replicas and --autoscale")
            settings |= {"threads": threads, "dtype": dtype, "exact": exact}
            given = replicas.scale(num_replicas, autoscale)
            given |= {"max_waiting": max_waiting, "drain_seconds": drain_seconds}
            given |= {"request_log": request_log and request_log.absolute(), "request_log_text": request_log_text}
            given |= {"otlp_endpoint": otlp_endpoint}
            replicas.serve(model, settings, configs, served_as, host, port, **given)
            return
        taken = stack.enter_context(bind(host, port))
        llm = stack.enter_context(
            open_llm(model, threads=threads, configs=configs, dtype=dtype, exact=exact, **settings)
        )
        if distill is not None:
            stack.enter_context(distiller(llm, distill))
        runner = stack.enter_context(Runner(llm, max_waiting))
        explain(llm, show_reasons)
        app = create_app(runner, served_as, records.watchers(runner.counters, served_as.model))
        served = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        server = DrainingServer(served, runner, drain_seconds)
        method = ", ".join(config.method for config in configs) or "no speculation"
        address = url(host, taken)
        print(f"{model} ({method}): {address}/v1 (Ctrl-C ends it)", file=sys.stderr)
        if pages:
            print(f"playground: {address}/, dashboard: {address}/dashboard", file=sys.stderr)
        server.run(sockets=[taken])


def distiller(llm: LLM, folder: Path) -> Distiller:
    """Trains the head of ``llm`` while it serves. Raises ConfigError where no method is a head alone."""
    from outrider.train.online import Distiller

    return Distiller(llm, folder)


def with_prediction(configs: Sequence[SpeculativeConfig]) -> list[SpeculativeConfig]:
    """The methods, and one more that drafts from OpenAI's predicted outputs where none of them does: it costs nothing
    to requests without a prediction."""
    from outrider.config import SpeculativeConfig
    from outrider.drafters import registry

    missing = not any(map(registry.follows_prediction, configs))
    return [*configs, *([SpeculativeConfig(method="prediction")] if missing else [])]
