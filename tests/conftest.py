"""Makes `from networks import ...` work in every test, and keeps tests that run side by side off each other's cores."""

import os

import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported: without a GPU its kernels run on CPU tensors
