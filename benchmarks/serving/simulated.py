"""Predicted against measured: the simulator, fed with what was measured here, beside Outrider's server under load.

Three parts, each of which can be read from a file instead of being measured again:
  drafts  the workload: lengths of prompts and answers, and every draft that a method proposed when the same chats were
          answered one at a time, with the tokens that the target really took (``--drafts``);
  loads   crowds of 1 to 32 clients, plain and with each method, measured as ``load.py`` measures (``--loads``);
  costs   the cost curve, and the steps of calibrating crowds of other sizes with other chats, each just before a crowd
          that is predicted (``--costs``). The constants of the simulator's machine are fitted to them (``--machine``,
          for `outrider simulate --costs`). ``--own-steps`` fits one to each predicted crowd's own steps: what is left
          then is the error of scheduling and acceptance alone, on a machine that does not hold still.
Throughput is tokens per second of all clients, prefill included; TPOT is the median over requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import fit
import harness
from load import Cell, Entrant, crowd
from measure import mixed
from process import Server, free_port, running

from outrider.engine.planner import Planner
from outrider.simulate import acceptance, costs, report, workload
from outrider.simulate.loop import Settings, Simulation
from outrider.target.costs import CostCurve

LEVELS = [1, 4, 8, 16, 32]
BESIDE = {1: 2, 4: 2, 8: 12, 16: 12, 32: 24}  # clients of the calibrating crowd before one that is predicted
MAX_NUM_SEQS = 32


class Notes:
    """A recorder that keeps every proposal: position in the output, and the draft."""

    def __init__(self) -> None:
        self.proposals: list[tuple[Any, int, Any]] = []

    def record(self, work: Sequence[Any]) -> None:
        """A step's work."""
        for item in work:
            if item.decoding and item.num_asked:
                self.proposals.append((item.seq, len(item.seq.output_ids) - item.num_committed, item.proposed))


def record(llm: Any, texts: Sequence[str], methods: Sequence[str], tokens: int) -> dict[str, Any]:
    """Answer every chat alone with each method; the document of ``outrider simulate --drafts``."""
    from outrider.config import SamplingParams

    rows: list[dict[str, Any]] = [{"drafts": {}} for _ in texts]
    prompts: list[Sequence[int]] = []
    for method in methods:
        for at, text in enumerate(texts):
            notes = Notes()
            llm.record(notes)
            params = SamplingParams(temperature=0.0, max_tokens=tokens, speculation={"method": method})
            output = llm.chat([{"role": "user", "content": text}], params, use_tqdm=False)[0]
            ids = output.outputs[0].token_ids
            rows[at] |= {"prompt": len(output.prompt_token_ids), "output": len(ids)}
            rows[at]["drafts"][method] = [
                [position, list(draft.scores or ()), None if draft.is_chain else list(draft.parents), path]
                for _, position, draft in notes.proposals
                for path in [list(draft.follow(ids[position:]))]
            ]
            if method == methods[0]:
                prompts.append(output.prompt_token_ids)
        harness.say(f"{method}: {len(texts)} chats recorded")
    llm.record(None)
    shared = 0
    while len({tuple(prompt[: shared + 1]) for prompt in prompts}) == 1 and shared < min(map(len, prompts)):
        shared += 1
    return {"format": acceptance.FORMAT, "shared": shared, "requests": rows}


@contextmanager
def serving(args: argparse.Namespace, log: Path) -> Iterator[Server]:
    """The server whose steps are logged."""
    port = free_port()
    options = ["--speculative-config", json.dumps([{"method": name} for name in args.methods])]
    options += ["--threads", str(args.threads), "--dtype", args.dtype, "--max-num-seqs", str(MAX_NUM_SEQS)]
    options += ["--kv-cache-tokens", str(args.kv_cache_tokens), "--port", str(port), "--no-pages"]
    program = str(Path(__file__).with_name("logged.py"))
    with running([sys.executable, program, str(log), args.model, *options], port, "/ready") as server:
        yield server


def systems(args: argparse.Namespace, server: Server) -> list[Entrant]:
    """Plain decoding and the methods."""
    plain = Entrant("plain", server, {"speculation": {"enabled": False}})
    return [plain, *(Entrant(name, server, {"speculation": {"method": name}}) for name in args.methods)]


def measure(args: argparse.Namespace, server: Server, log: Path, texts: Sequence[str], facts: Any) -> None:
    """At every level and for every system a calibrating crowd of another size with other chats, then the one that is
    predicted, so that both meet the machine in the same state. Writes what both did as it comes."""
    curve, kv_bytes = facts
    most = num_chats(max(args.levels))
    runs: dict[str, list[Any]] = {system.label: [] for system in systems(args, server)}
    own: dict[str, list[Any]] = {system.label: [] for system in systems(args, server)}
    cells: list[list[Any]] = []
    seen = 0

    def steps_of(system: Entrant, chats: Sequence[str], clients: int, number: int, tokens: int) -> tuple[Cell, Any]:
        nonlocal seen
        cell = asyncio.run(crowd(system, chats, clients, number, tokens))
        lines = fit.read(log, seen)
        seen += len(lines)
        harness.say(f"{clients} clients: {system.label} {cell.rate:.0f} tokens/s in {len(lines)} steps")
        return cell, lines

    for system in systems(args, server):
        _, alone = steps_of(system, texts[-4:], 4, -1, 16)
    for level in args.levels:
        for system in systems(args, server):
            beside = BESIDE.get(level, max(1, level * 3 // 4))
            chats = texts[most : most + max(4, beside)]
            runs[system.label].append(steps_of(system, chats, beside, -2 - level, args.max_new_tokens)[1])
            cell, lines = steps_of(system, texts[: num_chats(level)], level, 0, args.max_new_tokens)
            own[system.label].append(lines)
            cells.append([cell.label, cell.clients, cell.round, cell.seconds, cell.tokens, cell.tpot])
        if level == min(args.levels):
            alone = own["plain"][0]
        document = {"runs": runs, "own": own, "alone": alone, "curve": asdict(curve), "kv_bytes_per_token": kv_bytes}
        args.costs.with_suffix(".part").write_text(json.dumps(document))
        args.loads.with_suffix(".part").write_text(json.dumps(cells))
    for path in (args.costs, args.loads):
        path.with_suffix(".part").replace(path)


def fitted(steps: dict[str, Any], runs: dict[str, list[Any]], kv_cache_tokens: int) -> dict[str, Any]:
    """The document of ``outrider simulate --costs``, fitted to ``runs``: logged steps by system."""
    known = {label: [fit.columns(lines) for lines in group] for label, group in runs.items()}
    more = {"kv_bytes_per_token": steps["kv_bytes_per_token"], "kv_cache_tokens": kv_cache_tokens}
    return fit.fit(known, fit.columns(steps["alone"]), CostCurve(**steps["curve"]), more)


def simulate(label: str, clients: int, count: int, model: Any, drafts: Any, planner: Planner) -> Any:
    """One crowd on the server that has served the earlier ones."""
    known = acceptance.parse(drafts)
    method = None if label == "plain" else label
    asks = workload.closed(known.prompts[:count], known.outputs[:count], clients, drafts["shared"])
    settings = Settings(method=method, max_num_seqs=MAX_NUM_SEQS, kv_cache_tokens=model.kv_tokens)
    record = Simulation(settings, model, asks, known.methods, planner).run()
    return report.result_of(record, settings, model)


def compare(cells: Sequence[Cell], steps: dict[str, Any], machine: Any, drafts: Any) -> list[dict[str, Any]]:
    """A row a system and level, each simulated after its calibrating crowd. ``machine``: None to fit one to the own
    steps of each crowd."""
    out, seen = [], dict.fromkeys((cell.label for cell in cells), 0)
    labels = list(seen)
    for cell in cells:
        own = {cell.label: [steps["own"][cell.label][seen[cell.label]]]}
        seen[cell.label] += 1
        found = machine or fitted(steps, own, 1 << 16)
        model = costs.MeasuredCosts(costs.parse(found))
        planner, beside = Planner(model.curve), BESIDE.get(cell.clients, cell.clients)
        simulate(cell.label, beside, max(4, beside), model, drafts, planner)
        result = simulate(cell.label, cell.clients, num_chats(cell.clients), model, drafts, planner)
        tpot, predicted = statistics.median(cell.tpot), result.tpot_ms["p50"]
        row = {"system": cell.label, "clients": cell.clients, "measured": cell.rate, "predicted": result.throughput}
        row |= {"error": result.throughput / cell.rate - 1, "TPOT measured": tpot, "TPOT predicted": predicted}
        row |= {"TPOT error": predicted / tpot - 1, "tokens": cell.tokens, "tokens predicted": result.output_tokens}
        out.append(row)
    return sorted(out, key=lambda row: labels.index(row["system"]))


def num_chats(clients: int) -> int:
    """Of a crowd."""
    return max(8, 3 * clients // 2)


def show(rows: Sequence[dict[str, Any]]) -> None:
    """The table on stdout."""
    print(
        f"{'system':10}{'clients':>8}{'tokens/s':>10}{'predicted':>11}{'error':>8}"
        f"{'TPOT ms':>9}{'predicted':>11}{'error':>8}"
    )
    for row in rows:
        rates = f"{row['measured']:10.1f}{row['predicted']:11.1f}{row['error']:+8.1%}"
        tpots = f"{row['TPOT measured']:9.2f}{row['TPOT predicted']:11.2f}{row['TPOT error']:+8.1%}"
        print(f"{row['system']:10}{row['clients']:8}{rates}{tpots}")
    print(f"largest errors: {max(abs(row['error']) for row in rows):.1%} throughput, ", end="")
    print(f"{max(abs(row['TPOT error']) for row in rows):.1%} TPOT")


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser: Any = harness.parser(__doc__ or "", max_tokens=64)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--methods", type=harness.listed, default=["suffix", "eagle3"])
    parser.add_argument("--levels", type=lambda text: [int(part) for part in text.split(",")], default=LEVELS)
    parser.add_argument("--prompt-chars", type=int, default=600, help="prompts are cut to (default: %(default)s)")
    for name in ("drafts", "costs", "loads", "machine"):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help="read, or written when it does not exist")
    parser.add_argument("--own-steps", action="store_true", help="fit a machine to each predicted crowd's own steps")
    parser.add_argument("--only-drafts", action="store_true", help="stop once they are recorded: nothing is timed")
    parser.set_defaults(kv_cache_tokens=32768, threads=2)
    args: argparse.Namespace = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="simulated-"))
    for name in ("drafts", "costs", "loads", "machine"):
        setattr(args, name, getattr(args, name) or folder / f"{name}.json")
    return args


def main() -> int:
    """Measure what is missing, simulate, compare."""
    args = arguments()
    harness.start(args)
    from outrider.bench.data import load_prompts
    from outrider.llm import LLM

    texts = [prompt.turns[0][: args.prompt_chars] for prompt in mixed(load_prompts(args.prompts), 10_000)]
    most = num_chats(max(args.levels))
    if len(texts) < 2 * most:
        raise SystemExit(f"--prompts: {len(texts)} chats; at least {2 * most} are needed")
    both = args.costs.exists() and args.loads.exists()
    if not (args.drafts.exists() and both):
        configs = [{"method": name} for name in args.methods]
        with LLM(args.model, threads=args.threads, dtype=args.dtype, speculative_config=configs) as llm:
            if not args.drafts.exists():
                document = record(llm, texts[:most], args.methods, args.max_new_tokens)
                args.drafts.write_text(json.dumps(document))
            engine = llm._engine
            facts = (engine.planner.curve, engine.target.kv_bytes_per_token)
    if args.only_drafts:
        return 0
    if not both:
        with tempfile.TemporaryDirectory() as folder, serving(args, Path(folder) / "steps") as server:
            measure(args, server, Path(folder) / "steps", texts, facts)
    cells = [Cell(*row) for row in json.loads(args.loads.read_text())]
    steps, drafts = json.loads(args.costs.read_text()), json.loads(args.drafts.read_text())
    machine = fitted(steps, steps["runs"], args.kv_cache_tokens)
    args.machine.write_text(json.dumps(machine, indent=1))
    rows = compare(cells, steps, None if args.own_steps else machine, drafts)
    show(rows)
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
