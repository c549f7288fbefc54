"""The command ``tf-preempt``: `main` and one ``cmd_<verb>`` per verb, loaded when it is called for."""
