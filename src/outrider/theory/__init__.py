"""What speculation can bring, in closed form: pure functions on numbers, no model, no I/O."""
