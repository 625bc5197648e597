"""From evidence to the cause: detectors over what a run shows. Runs in the program, loaded by the first question."""
