"""How ``tf-preempt drill`` says what `tf_preempt.testing.drill` has found: `report`, `junit`."""
