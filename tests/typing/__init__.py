"""What type checkers make of the public names, for whoever uses them."""
