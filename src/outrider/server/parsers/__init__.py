"""What an answer's text holds beside its content, told from it character by character: reasoning and tool calls."""
