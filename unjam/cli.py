"""The command line: one thin command per verb.

Only typer is imported here; every verb imports what it needs, so that --help answers at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from unjam.search.result import SearchResult
    from unjam.spec.plan import Plan
    from unjam.twin.result import StepResult

USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]  # typer does not export it
PROGRESS_AFTER_SECONDS = 2.0

app = typer.Typer(
    name="unjam",
    help="Plan the parallel strategy of Mixture-of-Experts training.",
    epilog="\b\nExample: unjam plan deepseek-v3 h800 \\\n"
    "           --devices 2048 --seq-len 4096 --global-batch 15360",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
PlanArgument = Annotated[Path, typer.Argument(metavar="PLAN.yaml", help="A plan file.")]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A preset (see unjam models) or a config.json.")
]
ClusterArgument = Annotated[
    str | None,
    typer.Argument(metavar="CLUSTER", help="A preset (see unjam clusters) or a YAML file."),
]
ClusterOption = Annotated[
    str | None, typer.Option("--cluster", metavar="FILE", help="The same as CLUSTER.")
]
ImbalanceOption = Annotated[
    float | None, typer.Option(help="Heaviest expert's tokens over the mean.  [default: 1.5]")
]
FixOption = Annotated[
    str | None, typer.Option(metavar="tp=8,ep=32", help="Hold degrees or options.")
]
ExplainOption = Annotated[
    str | None,
    typer.Option(
        metavar="tp=8,pp=16,...",
        help="Say why one strategy is invalid or does not fit, or where its time goes.",
    ),
]
OutOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Write plan.yaml, report.html, trace.json.")
]


def main() -> None:
    """Entry point: a user's mistake is one line on stderr and exit code 2, never a traceback."""
    with Path(os.devnull).open("w") as nowhere:
        # A closed stream is None in Python, and a print to it would go to the other one.
        sys.stdout = sys.stdout or nowhere
        sys.stderr = sys.stderr or nowhere
        sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; return its exit code."""
    from unjam.spec.errors import InputError

    try:
        code = app(args=arguments or ["--help"], prog_name="unjam", standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        return _complain(str(error))
    except USAGE_ERROR as error:
        return _usage_error(error)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except OSError as error:
        if error.filename is not None:
            raise
        # Standard output. Python would complain once more when it flushes it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 1
        return _complain(f"standard output: cannot be written ({error.strerror})")
    return code if isinstance(code, int) else 0


def _complain(message: str) -> int:
    line = " ".join(message.split("\n"))
    with suppress(OSError):
        print(f"unjam: error: {line}", file=sys.stderr)
    return 2


def _usage_error(error: Exception) -> int:
    message: str = getattr(error, "format_message", lambda: str(error))()
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "unjam"
    return _complain(f"{message.strip().rstrip('.')} (see {command} --help)")


def _print_json(value: object) -> None:
    print(json.dumps(value, allow_nan=False))


@contextmanager
def _progress() -> Iterator[Callable[[float], None] | None]:
    """A progress bar on stderr for what takes over two seconds; nothing where nobody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    from time import monotonic

    from rich.console import Console
    from rich.progress import Progress

    begin = monotonic()
    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task("searching", total=1.0)

    def report(share: float) -> None:
        if monotonic() - begin > PROGRESS_AFTER_SECONDS and not bar.live.is_started:
            bar.start()
        bar.update(task, completed=share)

    try:
        yield report
    finally:
        if bar.live.is_started:
            bar.stop()


def _version(wanted: bool) -> None:
    if wanted:
        from unjam import __version__

        print(f"unjam {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


@app.command(
    epilog="\b\nExample: unjam plan pangu-ultra-moe-718b atlas-800t-a2 --devices 4096 \\\n"
    "           --seq-len 8192 --global-batch 4096 --fix tp=8 --out out/"
)
def plan(
    model: ModelArgument,
    cluster: ClusterArgument = None,
    *,
    devices: Annotated[int, typer.Option(help="Devices to use.")],
    seq_len: Annotated[int, typer.Option(help="Tokens of a sequence.")],
    global_batch: Annotated[int, typer.Option(help="Sequences of one step.")],
    cluster_file: ClusterOption = None,
    dtype: Annotated[str, typer.Option(help="Matmul precision: bf16 or fp8.")] = "bf16",
    imbalance: ImbalanceOption = None,
    top: Annotated[int, typer.Option(min=1, help="Strategies to list.")] = 10,
    fix: FixOption = None,
    explain: ExplainOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the best parallel strategy of a model on a cluster."""
    from unjam.spec.clusters import load_cluster
    from unjam.spec.files import check_output_dir
    from unjam.spec.jobs import job_spec
    from unjam.spec.models import load_model
    from unjam.spec.pairs import parse_pairs

    job = job_spec(
        devices=devices,
        seq_len=seq_len,
        global_batch=global_batch,
        dtype=dtype,
        imbalance=imbalance,
    )
    held, asked = parse_pairs("--fix", fix), parse_pairs("--explain", explain)
    spec, config = load_model(model)
    where = load_cluster(_one_cluster(cluster, cluster_file))
    if explain is not None:
        from unjam.search.explain import explain as explain_strategy

        _check_explain(held, asked, out)
        text = explain_strategy(spec, where, job, {**held, **asked})
        _print_json({"explanation": text}) if as_json else print(text)
        return
    if out:
        check_output_dir(out)
    from unjam.search.planner import make_plan, plan_job

    with _progress() as progress:
        result = plan_job(spec, where, job, top=top, fixed=held, progress=progress)
    if out:
        _write_results(out, result, make_plan(model, config, result))
    _show_search(result, out, as_json)


def _check_explain(
    held: dict[str, int | str], asked: dict[str, int | str], out: Path | None
) -> None:
    from unjam.spec.errors import InputError

    if out is not None:
        raise InputError("--out: --explain writes no files; leave one of them out")
    for key in held.keys() & asked.keys():
        if held[key] != asked[key]:
            raise InputError(f"--explain {key}={asked[key]}: --fix holds {key}={held[key]}")


def _one_cluster(argument: str | None, option: str | None) -> str:
    from unjam.spec.errors import InputError

    if argument and option and argument != option:
        raise InputError(f"CLUSTER {argument} and --cluster {option}: give one of them")
    chosen = argument or option
    if not chosen:
        raise InputError("CLUSTER is missing: name a preset (see unjam clusters) or a YAML file")
    return chosen


def _write_results(out: Path, result: SearchResult, chosen: Plan) -> None:
    from unjam.export.report import render_report
    from unjam.export.trace import render_trace
    from unjam.spec.files import write_files
    from unjam.spec.plan_io import plan_to_yaml

    write_files(
        {
            out / "plan.yaml": plan_to_yaml(chosen),
            out / "report.html": render_report(result),
            out / "trace.json": render_trace(result.best[0]),
        }
    )


def _show_search(result: SearchResult, out: Path | None, as_json: bool) -> None:
    from unjam.export import table

    if as_json:
        _print_json(table.search_to_json(result))
        return
    table.print_search(table.console(), result)
    if out:
        print(f"wrote {out / 'plan.yaml'}, {out / 'report.html'}, {out / 'trace.json'}")


@app.command(epilog="\b\nExample: unjam simulate out/plan.yaml --trace step.json")
def simulate(
    plan_file: PlanArgument,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a trace for Perfetto.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate one training step of a plan."""
    from unjam.export import table
    from unjam.search.open_plan import open_plan
    from unjam.twin.step import simulate_step

    loaded, model, cluster = open_plan(plan_file)
    result = simulate_step(model, cluster, loaded.job, loaded.strategy)
    if trace:
        _write_trace(trace, plan_file, result)
    if as_json:
        _print_json(table.step_to_json(result))
        return
    table.print_step(table.console(), result, f"{model.name} on {cluster.name}, {plan_file}")
    if trace:
        print(f"wrote {trace}")


def _write_trace(path: Path, plan_file: Path, result: StepResult) -> None:
    from unjam.export.trace import render_trace
    from unjam.spec.errors import InputError
    from unjam.spec.files import write_text

    if path.exists() and path.samefile(plan_file):
        raise InputError(f"--trace {path}: is the plan itself; choose another path")
    write_text(path, render_trace(result))


@app.command(epilog="\b\nExample: unjam models path/to/config.json --json")
def models(
    config: Annotated[
        str | None, typer.Argument(metavar="CONFIG", help="A preset or a config.json.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the model presets, or count the parameters of one model."""
    from dataclasses import asdict

    from unjam.export import preset_tables
    from unjam.export.table import console
    from unjam.spec.models import load_model, model_presets

    if config is not None:
        spec, _ = load_model(config)
        if as_json:
            _print_json(asdict(spec.params))
        else:
            console().print(preset_tables.parameters_table(spec))
        return
    specs = [load_model(x)[0] for x in model_presets()]
    if as_json:
        _print_json({x.name: asdict(x.params) for x in specs})
    else:
        console().print(preset_tables.models_table(specs))


@app.command(epilog="\b\nExample: unjam clusters atlas-800t-a2")
def clusters(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A preset or a YAML file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the cluster presets, or show each number of one with its source."""
    from unjam.export import preset_tables
    from unjam.export.table import console
    from unjam.spec.clusters import cluster_presets, cluster_to_mapping, load_cluster

    if name is not None:
        spec = load_cluster(name)
        if as_json:
            _print_json(cluster_to_mapping(spec))
        else:
            console().print(preset_tables.cluster_table(spec, cluster_to_mapping(spec)))
        return
    specs = [load_cluster(x) for x in cluster_presets()]
    if as_json:
        _print_json({x.name: cluster_to_mapping(x) for x in specs})
    else:
        console().print(preset_tables.clusters_table(specs))


@app.command(epilog="\b\nExample: unjam export out/plan.yaml --to megatron")
def export(
    plan_file: PlanArgument,
    to: Annotated[str, typer.Option(help="The framework: megatron.")] = "megatron",
    as_json: JsonOption = False,
) -> None:
    """Print the launch flags of a plan for a training framework."""
    from unjam.spec.errors import InputError

    if to != "megatron":
        raise InputError(f"--to {to}: unknown framework; use megatron")
    from unjam.export import megatron
    from unjam.search.open_plan import open_plan

    loaded, model, _ = open_plan(plan_file)
    if as_json:
        _print_json(
            {
                "arguments": megatron.megatron_arguments(loaded, model),
                "environment": megatron.megatron_environment(loaded),
                "remarks": megatron.megatron_remarks(loaded, model),
            }
        )
        return
    print(megatron.to_megatron(loaded, model))


if __name__ == "__main__":
    main()
