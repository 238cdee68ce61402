"""Test that results equal the raw model's with any instruction set and number of threads.

float32 sums the same terms in another order with wider registers or more threads, so a tolerance that holds
here may not hold on another machine. torch reads both settings once, when it is imported. Only `make prove`
runs these processes: no code of the package depends on the instruction set.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]

SETS = {
    "default": {"ATEN_CPU_CAPABILITY": "default"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "DNNL_MAX_CPU_ISA": "AVX2"},
    "all it has": {},
}
"""CPU instruction sets, with the settings that restrict torch and oneDNN to them."""

EVERY = [(name, threads) for name in SETS for threads in (1, 2)]

PARITY = ["tests/model/test_families.py", "-k", "float32 and raw_model and not longest and not 512"]
"""Parity tests of all families and MiniLM, without the longest texts, which take most of the time."""

IN_A_PROCESS = """
import sys
import pytest, torch
asked, threads, *parity = sys.argv[1:]
found = torch.backends.cpu.get_cpu_capability()
assert asked not in ("default", "avx2") or found == asked.upper(), f"torch computes with {found}"
status = pytest.main(parity)
assert torch.get_num_threads() == int(threads), f"torch computes in {torch.get_num_threads()} threads"
sys.exit(status)
"""


@pytest.mark.prove
@pytest.mark.parametrize(("name", "threads"), EVERY)
def test_parity_holds_with_other_instructions_and_threads(name: str, threads: int) -> None:
    has = torch.cpu.get_capabilities()
    if name == "avx2" and not (has.get("avx2") and has.get("fma3")):
        pytest.skip("this processor has no AVX2")
    if threads > (os.cpu_count() or 1):
        pytest.skip(f"this machine has no {threads} cores")
    surrounding = {key: value for key, value in os.environ.items() if key not in SETS["avx2"]}
    # Idle threads sleep instead of spinning, because other tests need the cores.
    settings = {**SETS[name], "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    if surrounding | settings == os.environ | {"OMP_WAIT_POLICY": "passive"}:
        pytest.skip("the tests around this one run so already")
    done = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS, name, str(threads), *PARITY],
        cwd=ROOT,
        env=surrounding | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "[100%]" in done.stdout, "tests were run"
