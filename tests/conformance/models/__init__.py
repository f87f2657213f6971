"""Other people's models on device "tpu": a training step compared with torch on the CPU."""
