"""What is shipped, and from where it is tested."""
