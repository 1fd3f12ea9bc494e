"""Old command lines of other engines, made current: what each flag was, and what it became."""
