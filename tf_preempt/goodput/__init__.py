"""What happened in a run, written down by its workers and read by supervisor, demo and reports.

Nothing here imports TensorFlow (a ``gs://`` directory makes `tf_preempt._files` do so).
"""
