"""What is run: a model, its data and its training step; one file a kind."""
