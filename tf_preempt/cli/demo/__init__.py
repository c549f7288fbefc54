"""What ``tf-preempt demo`` does, one story per module.

`settings` (how big), `data` (the digits as a TFDS data set), `train` (the program that a user would write),
`progress` and `progress_callback` (what each worker did, batch by batch), `result` (what a training ended
with), `interruptions` (when to disturb), `director` (does it) and `watch` (sends the signals), `comparison`
(are the two trainings the same?), `report` (says so).  Only `data`, `train` and `progress_callback`, which
run in processes of their own, import TensorFlow.
"""
