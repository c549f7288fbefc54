"""Programs that import TensorFlow, for those who do not: each runs in a process of its own."""
