"""What listens and answers: voice activity, end of turn, and the agents behind one protocol."""
