"""Real engines, and models small enough for them, for the demo, the tests and the benches."""
