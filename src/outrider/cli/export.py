"""``outrider export``: files for other programs, and (see ``export_engine``) other engines' configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli import export_engine, options
from outrider.errors import ConfigError

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _export() -> None:
    """Write other engines' configurations, and files for other programs."""


export_engine.register(app)


@app.command("monitoring")
def monitoring(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the files go; it is made if missing.")],
    metrics_prefix: options.MetricsPrefix = "outrider:",
    target: Annotated[
        str, typer.Option("--target", metavar="HOST:PORT", help="The server that Prometheus scrapes.")
    ] = "localhost:8000",
    min_acceptance: Annotated[
        float, typer.Option("--min-acceptance", min=0.0, max=1.0, help="Conditional acceptance below which to alert.")
    ] = 0.5,
    min_tokens: Annotated[
        float,
        typer.Option("--min-tokens-per-step", min=1.0, help="Tokens of a drafted step below which to alert."),
    ] = 2.0,
    max_draft_ms: Annotated[
        float, typer.Option("--max-draft-ms", min=0.001, help="Drafting in a step (P99) above which to alert.")
    ] = 25.0,
) -> None:
    """Write a Grafana dashboard, alert rules for Prometheus and a configuration that loads them."""
    import yaml

    from outrider.telemetry import alerts, dashboard

    options.check_metrics_prefix(metrics_prefix)
    limits = alerts.Limits(min_acceptance, min_tokens, max_draft_ms / 1e3)
    texts = {
        "outrider-dashboard.json": json.dumps(dashboard.dashboard(metrics_prefix), indent=2) + "\n",
        alerts.RULES_FILE: yaml.safe_dump(alerts.rules(metrics_prefix, limits), sort_keys=False, width=1000),
        "prometheus.yml": yaml.safe_dump(alerts.scraping(target), sort_keys=False),
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (out / name).write_text(text, encoding="utf-8")
            print(out / name)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}; name a folder that can be written") from None
