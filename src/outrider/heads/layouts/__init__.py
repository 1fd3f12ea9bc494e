"""How other projects store draft heads: a layout reads a checkpoint into a head and writes a head as one."""
