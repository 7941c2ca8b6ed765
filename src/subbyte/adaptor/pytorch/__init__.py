"""The PyTorch adaptor."""
