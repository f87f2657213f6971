"""PyTorch's own operator database, run on device "tpu" and held against torch on the CPU."""
