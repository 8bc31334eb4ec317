"""What transition operators cost: the gate stops a wrong T, and bytes are those of stored entries."""

from dataclasses import replace
from pathlib import Path

import pytest
from checkpoints import write_checkpoint

from hypic.config import EngineConfig
from hypic.errors import InvalidRequestError
from hypic.eval import operator_bytes, transition_bench
from hypic.eval.operator_bytes import Geometry
from hypic.eval.transition_bench import run_transition
from hypic.eval.ttft import GateError
from hypic.kernels.chunk_scan.naive import _Loop

SMALL = {
    "dense": Geometry("gated_delta_net", 30, (2, 4), 32, 16),
    "dense, no decay": Geometry("gated_delta_net", 30, (2, 4), 32, 16, decay=False),
    "scalar": Geometry("retnet", 5, (2, 2), 8, 8),
}
CONFIG = EngineConfig(threads=1)


@pytest.fixture(autouse=True)
def small_geometries(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (operator_bytes, transition_bench):
        monkeypatch.setattr(module, "GEOMETRIES", SMALL)


def test_report_of_a_small_run(tiny_checkpoint: Path) -> None:
    report = run_transition(CONFIG, tiny_checkpoint, tokens=130, rounds=1, full=False)
    results = report.results
    assert {"overhead_percent", "with_ms", "without_ms", "entry_overhead_percent"} <= results.keys()
    assert results["measured_layers"] == {"dense": 6, "dense, no decay": 6, "scalar": 5}
    assert results["gate"].keys() == {"same_pass", "law"}
    state = 30 * 4 * 32 * 16
    fp32, int8 = (results["bytes_per_segment"]["dense, no decay"][name] for name in ("fp32", "mixed_int8"))
    assert fp32 == 4 * (state + 30 * 4 * 32 * 32) + 30 * 4, "S, T, and a byte a head that tells its format"
    # T: codes with float32 scales of rows, columns and the diagonal, or bfloat16 and the diagonal. S: codes and scales.
    by_head = {"zero": 0, "8 bit": 32 * 32 + 4 * 3 * 32, "bf16": 2 * 32 * 32 + 4 * 32, "fp32": 4 * 32 * 32}
    shares = results["head_shares"]["dense, no decay"]
    transitions = 30 * 4 * sum(share * by_head[name] for name, share in shares.items())
    assert int8 == transitions + 30 * 4 + state + 30 * 4 * 4 * (32 + 16)
    assert results["bytes_per_segment"]["scalar"]["fp32"] == 5 * 2 * 4 * (8 * 8 + 1), "T is a number a head"
    assert shares["zero"] == 0
    assert "scalar" not in results["head_shares"]
    assert "scalar T" in report.markdown()


def test_heads_that_forget_take_no_bytes() -> None:
    found = operator_bytes.operator_bytes(SMALL["dense"], tokens=200, measured_layers=2)
    assert 0 < found.head_shares["zero"] < 1
    whole = operator_bytes.operator_bytes(SMALL["dense, no decay"], tokens=200, measured_layers=2)
    assert found.by_format["mixed_int8"] < whole.by_format["mixed_int8"]
    assert found.by_format["fp32"] == whole.by_format["fp32"]


def test_gate_is_red_where_t_is_wrong(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = _Loop._advance_operators
    monkeypatch.setattr(
        _Loop, "_advance_operators", lambda loop, erase, key, decay: right(loop, erase, key, 0.9 * decay)
    )
    with pytest.raises(GateError, match="law"):
        run_transition(CONFIG, tiny_checkpoint, tokens=65, rounds=1, full=False)


def test_what_has_no_operators_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="more than the 8 tokens"):
        run_transition(CONFIG, tiny_checkpoint, tokens=8, rounds=1, full=False)
    with pytest.raises(InvalidRequestError, match="no linear layers"):
        run_transition(CONFIG, write_checkpoint(tmp_path / "full", "gpt_oss"), tokens=65, rounds=1, full=False)


def test_coarser_dtypes_are_held_to_their_own_rounding(tiny_checkpoint: Path) -> None:
    results = run_transition(replace(CONFIG, dtype="bfloat16"), tiny_checkpoint, 65, rounds=1, full=False).results
    assert results["dtype"] == "bfloat16"
