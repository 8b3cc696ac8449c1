"""What `headwise bench` measures: cases, peers, timing, and the tables of it."""
