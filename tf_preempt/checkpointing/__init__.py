"""All workers save the same step: agreement, checkpoints, the handler for custom loops."""
