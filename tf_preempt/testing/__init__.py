"""What those who test their training programs need."""
