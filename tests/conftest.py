"""Makes `from networks import ...` work in every test, and keeps tests that run side by side off each other's cores."""

import gc
import os

os.environ["OMP_NUM_THREADS"] = "1"  # of every thread, and of processes that tests start; read when torch is imported

import pytest
import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported: without a GPU its kernels run on CPU tensors


@pytest.fixture(autouse=True, scope="session")
def _own_latencies(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What tests measure is not kept where the user's measurements are."""
    os.environ["SUBBYTE_LATENCY_FILE"] = str(tmp_path_factory.mktemp("latency") / "latency.json")


def pytest_collection_finish() -> None:
    """Take what is imported by now out of every later garbage collection, which else takes a tenth of the time."""
    gc.collect()
    gc.freeze()
