"""Random numbers: generators that begin again while a model is trained."""
