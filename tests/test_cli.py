"""The command line with the planner replaced by a hand-made result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import small_cluster, small_model
from fakes import fake_search

import unjam
from unjam import cli
from unjam.spec.errors import InputError
from unjam.spec.jobs import job_spec
from unjam.spec.strategy import DEFAULT_IMBALANCE

SIZES = ["--devices", "64", "--seq-len", "1024", "--global-batch", "64"]
VERBS = ["plan", "simulate", "models", "clusters", "export"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replace the planner and the readers; collect what they were asked for."""
    seen: dict[str, Any] = {}

    def load_model(name: str) -> tuple[object, dict[str, int]]:
        if name == "nothing":
            raise InputError("model nothing: unknown; did you mean something?")
        return small_model(), {"hidden_size": 512}

    def plan_job(model: object, cluster: object, job: object, **options: object) -> object:
        seen.update(options, job=job)
        return fake_search()

    def explain(*given: object) -> str:
        return f"explained {given[-1]}"

    monkeypatch.setattr("unjam.spec.models.load_model", load_model)
    monkeypatch.setattr("unjam.spec.clusters.load_cluster", lambda name: small_cluster(name=name))
    monkeypatch.setattr("unjam.search.planner.plan_job", plan_job)
    monkeypatch.setattr("unjam.search.planner.make_plan", lambda *x: SimpleNamespace(name=x[0]))
    monkeypatch.setattr("unjam.search.explain.explain", explain)
    monkeypatch.setattr("unjam.spec.plan_io.plan_to_yaml", str)
    return seen


def test_plan_prints_the_table(calls: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["plan", "m", "c", *SIZES, "--fix", "tp=8,dispatcher=dedup", "--top", "3"]) == 0
    assert calls["fixed"] == {"tp": 8, "dispatcher": "dedup"}
    assert calls["top"] == 3
    assert calls["job"].imbalance == DEFAULT_IMBALANCE
    assert "TP8 PP4 VPP2 EP32" in capsys.readouterr().out


@pytest.mark.usefixtures("calls")
def test_plan_json_is_one_object(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli.run(["plan", "m", "--cluster", "c", *SIZES, "--json", "--out", str(out)]) == 0
    assert len(json.loads(capsys.readouterr().out)["strategies"]) == 3
    assert {x.name for x in out.iterdir()} == {"plan.yaml", "report.html", "trace.json"}


@pytest.mark.usefixtures("calls")
def test_explain_answers_in_place_of_a_search(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["plan", "m", "c", *SIZES, "--explain", "tp=8, pp=16"]) == 0
    assert capsys.readouterr().out == "explained {'tp': 8, 'pp': 16}\n"


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "nothing", "c", *SIZES], "did you mean"),
        (["plan", "m", *SIZES], "CLUSTER is missing"),
        (["plan", "m", "c", "--cluster", "d", *SIZES], "one of them"),
        (["plan", "m", "c", *SIZES[2:]], "Missing option '--devices'"),
        (["plan", "m", "c", "--devices", "-4", *SIZES[2:]], "--devices -4: must be"),
        (["plan", "m", "c", "--devices", "x", *SIZES[2:]], "--devices"),
        (["plan", "m", "c", "--devices", "9" * 40, *SIZES[2:]], "from 1 to 1000000000"),
        (["plan", "m", "c", *SIZES, "--explain", "tp=2", "--out", "o"], "--explain writes no"),
        (["plan", "m", "c", *SIZES, "--explain", "tp=2", "--fix", "tp=4"], "--fix holds tp=4"),
        (["plan", "m", "c", *SIZES, "--dtype", "int3"], "--dtype int3"),
        (["plan", "m", "c", *SIZES, "--imbalance", "0.5"], "--imbalance 0.5"),
        (["plan", "m", "c", *SIZES, "--fix", "tp"], "--fix tp: write key=value"),
        (["plan", "m", "c", *SIZES, "--fix", "tp=1,tp=2"], "twice"),
        (["export", "x.yaml", "--to", "slurm"], "--to slurm"),
        (["plann"], "plann"),
        (["plan", "--colour"], "--colour"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("unjam: error: ")
    assert captured.err.count("\n") == 1
    assert words in captured.err


def test_unwritable_output_is_found_before_the_search(
    calls: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert cli.run(["plan", "m", "c", *SIZES, "--out", str(tmp_path / "file")]) == 2
    assert calls == {}
    assert capsys.readouterr().err.count("\n") == 1


def test_interrupt_ends_with_130(
    calls: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("unjam.search.planner.plan_job", interrupted)
    assert cli.run(["plan", "m", "c", *SIZES]) == 130
    assert capsys.readouterr().out == ""
    assert calls == {}


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_each_verb_ends_with_an_example(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([verb, "--help"]) == 0
    last = capsys.readouterr().out.rstrip().split("\n\n")[-1]
    assert last.lstrip().startswith(f"Example: unjam {verb}")


def test_help_states_the_default_imbalance(capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(["plan", "--help"])
    assert f"[default:{DEFAULT_IMBALANCE}]" in "".join(capsys.readouterr().out.split())


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == 0
    assert "clusters" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"unjam {unjam.__version__}\n"


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from unjam import cli; cli.run(['plan', '--help']);"
        "print(sorted({'numpy', 'numba', 'yaml', 'rich', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("[]")


def test_closed_pipe_is_quiet() -> None:
    code = (
        "import sys; from unjam import cli; sys.stdout.reconfigure(write_through=True);"
        "sys.stdin.read(); sys.exit(cli.run(['--version']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout
    process.stdout.close()  # the reader leaves before anything is printed
    process.stdout = None
    _, errors = process.communicate()
    assert errors == b""
    assert process.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["models"], ["models", "--json"], ["--help"]])
def test_a_full_disk_under_standard_output_is_one_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "unjam.cli", *arguments],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "unjam: error: standard output: cannot be written (No space left on device)\n"
    )


def test_plan_from_python_is_the_same_search(calls: dict[str, Any]) -> None:
    result = unjam.plan("m", "c", devices=64, seq_len=1024, global_batch=64, fixed={"tp": 2})
    assert result.best
    assert calls["job"] == job_spec(devices=64, seq_len=1024, global_batch=64)
    assert calls["fixed"] == {"tp": 2}
    with pytest.raises(ValueError, match="--seq-len 0"):
        unjam.plan("m", "c", devices=64, seq_len=0, global_batch=64)
