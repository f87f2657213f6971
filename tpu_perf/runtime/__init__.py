"""The device "tpu": storage, dispatch, eager modes, lowerings, compile backend, program cache."""
