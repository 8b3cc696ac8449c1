"""Things with weights or state."""
