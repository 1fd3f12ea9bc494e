"""What a generation did, for people to look at: records of steps and the page that shows them."""
