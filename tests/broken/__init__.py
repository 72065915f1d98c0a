"""One small patch per guarantee: each must make the test that it names fail."""
