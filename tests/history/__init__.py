"""What runs with several processes write down, and the one set of rules by which all of them are judged."""
