"""A discrete-event simulation of serving: the engine's own scheduler and planner on a clock that is computed."""
