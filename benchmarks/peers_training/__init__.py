"""The same network to be trained, its convolutions and linear maps quantized by others."""
