"""Does an interrupted training end as an undisturbed one?  Tries it with a real program and real signals.

`options` (what is asked for), `kills` (which signal when, decided from the seed), `kill_watch` (follows a
training and sends them), `kept_checkpoints` (keeps what the program's retention deletes), `training_run` (one
training from start to end), `comparing` (has two of them compared), `differences` (by how much two values
differ), `causes` (why they do, likely), `outcome` (what was found, as lines and as JSON), `drill` (all in
order).

Nothing here imports TensorFlow: programs and comparisons run in processes of their own (`testing/children`).
"""
