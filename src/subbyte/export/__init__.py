"""Writing quantized models to files, and reading them back."""
