"""The engine: sequences, scheduler, planner, and the one step loop."""
