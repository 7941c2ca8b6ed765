"""Makes `from networks import ...` work in every test, and keeps tests that run side by side off each other's cores."""

import torch

torch.set_num_threads(1)
