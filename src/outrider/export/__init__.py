"""From one description of a deployment to other engines' configurations, and from old command lines to current ones."""
